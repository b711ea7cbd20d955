"""The four workloads, as they lie in workloads/*.jsonl: who asks for what, and when.

A line is one request: `id`, `arrival_s` (since the start of the run), `prompt_token_ids`,
`max_tokens`, and for readers `prompt_text`, `group`, `shared_prefix_len`.
"""

import json
from dataclasses import dataclass, replace
from importlib import resources

CONCURRENCY = {"w1": 1, "w2": 16, "w3": 16, "w4": 9}
"""Most requests open at once, by workload; one more waits at the client for its turn."""

IDEAL_CACHED_TOKENS = {"w1": 0, "w2": 0, "w3": 43008, "w4": 0}
"""Prompt tokens that a cache without a fault serves, from a cold start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One request of a workload: greedy, end-of-sequence ignored, so its length is fixed."""

    id: str
    arrival_s: float
    """Earliest moment of sending, since the start of the run."""
    prompt_token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order in which they are sent."""

    name: str
    concurrency: int
    requests: tuple[BenchRequest, ...]

    @property
    def num_output_tokens(self) -> int:
        """Tokens that a run generates in all."""
        return sum(request.max_tokens for request in self.requests)

    def for_vocabulary(self, vocab_size: int) -> "Workload":
        """The same lengths and shared prefixes, with ids that a smaller vocabulary has.

        The fake worker's holds little more than the bytes; the workloads are written for SmolLM2.
        """
        folded = tuple(
            replace(
                request, prompt_token_ids=tuple(i % vocab_size for i in request.prompt_token_ids)
            )
            for request in self.requests
        )
        return replace(self, requests=folded)

    def for_run(self, run_id: int, vocab_size: int) -> "Workload":
        """The same prompts but for their first tokens, which no other run has.

        A prefix cache matches from the first token on, so a server that knows no call to empty its
        cache finds nothing there of the runs before.  Requests that begin alike still do, and those
        that do not still do not, so within the run they share what they shared, to the token.
        First tokens come from the middle half of the vocabulary, where no special ones are; run ids
        near each other have none in common as long as that half is large enough for them.
        """
        first_ids = dict.fromkeys(request.prompt_token_ids[0] for request in self.requests)
        start, num_ids = vocab_size // 4, vocab_size // 2
        taken = run_id * len(first_ids)
        of_run = {i: start + (taken + n) % num_ids for n, i in enumerate(first_ids)}
        changed = tuple(
            replace(
                request,
                prompt_token_ids=(
                    of_run[request.prompt_token_ids[0]],
                    *request.prompt_token_ids[1:],
                ),
            )
            for request in self.requests
        )
        return replace(self, requests=changed)


def load_workload(name: str) -> Workload:
    """One of w1, w2, w3, w4.

    Raises:
        KeyError: there is no such workload.
    """
    concurrency = CONCURRENCY[name]
    folder = resources.files("radixd.bench") / "workloads"
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    requests = sorted((_request(json.loads(line)) for line in lines), key=lambda r: r.arrival_s)
    return Workload(name=name, concurrency=concurrency, requests=tuple(requests))


def _request(line: dict[str, object]) -> BenchRequest:
    ids, arrival_s, max_tokens = line["prompt_token_ids"], line["arrival_s"], line["max_tokens"]
    assert isinstance(ids, list), line["id"]
    assert isinstance(arrival_s, float), line["id"]
    assert isinstance(max_tokens, int), line["id"]
    return BenchRequest(
        id=str(line["id"]),
        arrival_s=arrival_s,
        prompt_token_ids=tuple(ids),
        max_tokens=max_tokens,
    )
