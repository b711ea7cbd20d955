"""The workloads in the package are the ones the figures speak of."""

import pytest

from radixd.bench.workload import CONCURRENCY, IDEAL_CACHED_TOKENS, load_workload


@pytest.mark.parametrize(
    ("name", "num_requests", "num_prompt_tokens", "num_output_tokens"),
    [("w1", 1, 128, 128), ("w2", 16, 1024, 2048), ("w3", 64, 51200, 2048), ("w4", 9, 4608, 144)],
)
def test_sizes(
    name: str, num_requests: int, num_prompt_tokens: int, num_output_tokens: int
) -> None:
    work = load_workload(name)
    assert len(work.requests) == num_requests
    assert sum(len(r.prompt_token_ids) for r in work.requests) == num_prompt_tokens
    assert work.num_output_tokens == num_output_tokens
    assert work.concurrency == CONCURRENCY[name]
    assert len({request.id for request in work.requests}) == num_requests


def test_ideal_reuse_is_what_the_prompts_share() -> None:
    for name in CONCURRENCY:
        seen: set[tuple[int, ...]] = set()
        shared = 0
        for request in load_workload(name).requests:
            ids = request.prompt_token_ids
            starts = [ids[:end] for end in range(1, len(ids))]
            shared += sum(start in seen for start in starts)
            seen.update(starts)
        # A prompt may share a token or two by chance; the plan counts only what is meant.
        assert IDEAL_CACHED_TOKENS[name] <= shared <= IDEAL_CACHED_TOKENS[name] + 200


def test_arrivals_are_in_order() -> None:
    arrivals = [request.arrival_s for request in load_workload("w4").requests]
    assert arrivals == sorted(arrivals)
    assert arrivals == [0.0, *[0.2] * 8]


def test_a_smaller_vocabulary_keeps_lengths_and_sharing() -> None:
    work = load_workload("w3")
    small = work.for_vocabulary(264)
    assert small.num_output_tokens == work.num_output_tokens
    assert max(max(r.prompt_token_ids) for r in small.requests) < 264
    assert len({r.prompt_token_ids[:768] for r in small.requests}) == 8
    assert work.for_vocabulary(49152) == work


def test_unknown_workload() -> None:
    with pytest.raises(KeyError):
        load_workload("w5")
