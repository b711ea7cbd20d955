"""The workloads in the package are the ones the figures speak of."""

import pytest

from radixd.bench.workload import CONCURRENCY, IDEAL_CACHED_TOKENS, Workload, load_workload


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


def shared_tokens(work: Workload) -> int:
    """Prompt tokens that a prefix cache serves, where one request comes after another."""
    seen: set[tuple[int, ...]] = set()
    shared = 0
    for request in work.requests:
        ids = request.prompt_token_ids
        starts = [ids[:end] for end in range(1, len(ids))]
        shared += sum(start in seen for start in starts)
        seen.update(starts)
    return shared


def test_ideal_reuse_is_what_the_prompts_share() -> None:
    for name in CONCURRENCY:
        shared = shared_tokens(load_workload(name))
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


@pytest.mark.parametrize("name", CONCURRENCY)
@pytest.mark.parametrize("vocab_size", [264, 49152])
def test_first_tokens_are_those_of_the_run(name: str, vocab_size: int) -> None:
    work = load_workload(name).for_vocabulary(vocab_size)
    runs = [work.for_run(run_id, vocab_size) for run_id in (700, 701, 702)]
    firsts = [{request.prompt_token_ids[0] for request in run.requests} for run in runs]
    assert len(set().union(*firsts)) == sum(len(ids) for ids in firsts), "no two have one in common"
    for run, ids in zip(runs, firsts, strict=True):
        assert vocab_size // 4 <= min(ids) <= max(ids) < 3 * vocab_size // 4
        assert shared_tokens(run) == shared_tokens(work)
        for changed, request in zip(run.requests, work.requests, strict=True):
            assert changed.prompt_token_ids[1:] == request.prompt_token_ids[1:]
    assert runs[0] == work.for_run(700, vocab_size)


def test_unknown_workload() -> None:
    with pytest.raises(KeyError):
        load_workload("w5")
