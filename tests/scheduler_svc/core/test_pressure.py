"""A pool that is asked for twice what it holds: nobody stalls, and little is computed twice.

The trace is that of `radixd pressure`; time is virtual, so every number is the same everywhere.
"""

from array import array
from collections import deque
from dataclasses import replace
from statistics import fmean

import pytest

from gpu_worker.fake_engine import FakeEngine, FakeModel
from gpu_worker.fake_model import Constraints
from protos.plan import SamplingParams
from radixd.bench.pressure_trace import STOP_TOKEN_IDS, num_clients, trace
from scheduler_svc.core import invariants
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Ending, Submission
from scheduler_svc.core.scheduler import Scheduler

NUM_SLOTS = 12288
MAX_LENGTH = 4096
NUM_STEPS = 2000
SEEDS = (1, 2, 3)
STEP_NS = 10_000_000
BOLD = 0.05
"""A `decode_reserve` that lets in what the pool can bear, as seen from its throughput."""


class QuickEngine(FakeEngine):
    """Says what follows from the last few tokens, as thousands of long rows are to be read."""

    def _sample(self, plan, row, logprobs):
        num_tokens = len(row.slots)
        tail = array("i", [self._tokens[slot] for slot in row.slots[-8:]])
        is_early = num_tokens - row.new.num_prompt < row.new.sampling.min_tokens
        constraints = Constraints(suppressed_ids=row.new.suppressed_ids if is_early else ())
        positions = range(num_tokens - len(tail), num_tokens)
        row.last_sampled = self.model.next_token(tail, positions, row.new.sampling, constraints)
        return row.last_sampled


class Loop:
    """A closed loop of clients around a core."""

    def __init__(self, *, page_size=1, depth=2, seed=1, **config):
        self.engine = QuickEngine(
            FakeModel(), num_slots=NUM_SLOTS, max_rows=256, max_length=MAX_LENGTH
        )
        policies = {"decode_reserve": BOLD, **config}
        self.core = Scheduler(
            SchedulerConfig(page_size=page_size, pipeline_depth=depth, **policies),
            self.engine.hello(),
        )
        self.requests = trace(seed)
        self.num_submitted = 0
        self.now_ns = 0
        self.sent = deque()
        self.endings = {}
        self.used = []
        self.longest_gap = self.gap = 0
        for _ in range(num_clients(NUM_SLOTS)):
            self.submit()

    def submit(self):
        request = next(self.requests)
        self.num_submitted += 1
        submission = Submission(
            request_id=f"p{self.num_submitted}",
            prompt_ids=array("i", request.prompt_ids),
            sampling=SamplingParams(min_tokens=request.min_tokens),
            max_tokens=request.max_tokens or MAX_LENGTH,
            stop_token_ids=STOP_TOKEN_IDS,
            ignore_eos=True,
        )
        assert not self.core.submit(submission, self.now_ns)

    def take(self, outputs):
        """Whoever has its answer asks for the next one."""
        for output in outputs:
            if output.ending is not None:
                self.endings[output.ending] = self.endings.get(output.ending, 0) + 1
                self.submit()

    def step(self):
        while True:
            step = self.core.schedule(self.now_ns)
            self.take(step.outputs)
            if step.plan is None:
                break
            self.sent.append(step.plan)
        self.now_ns += STEP_NS
        result = replace(self.engine.execute(self.sent.popleft()), forward_ns=STEP_NS)
        self.gap = 0 if result.token_ids else self.gap + 1
        self.longest_gap = max(self.longest_gap, self.gap)
        self.take(self.core.apply(result, self.now_ns))
        state = self.core.state
        self.used.append(state.num_used_pages / state.pool.num_pages)

    def run(self):
        for number in range(NUM_STEPS):
            self.step()
            if number % 200 == 0:
                invariants.check(self.core)
        return self


def played(policy, keep, **config):
    """One loop for each seed, under a policy."""
    policies = {"retraction_policy": policy, "retraction_keep": keep}
    return [Loop(seed=seed, **policies, **config).run() for seed in SEEDS]


def total(loops, counter):
    return sum(loop.core.counters()[counter] for loop in loops)


def tax(loops):
    return total(loops, "recomputed_tokens") / total(loops, "computed_tokens")


@pytest.mark.parametrize(("page_size", "depth"), [(1, 2), (16, 1)])
def test_little_is_computed_twice(page_size, depth):
    ours = played("cost", "partial", page_size=page_size, depth=depth)
    theirs = played("lifo", "none", page_size=page_size, depth=depth)
    for loop in ours + theirs:
        assert loop.core.counters()["retractions"] > 2
        assert set(loop.endings) <= {Ending.STOP, Ending.LENGTH}
        assert sum(loop.endings.values()) > 80
        warm = loop.used[NUM_STEPS // 10 :]
        assert fmean(warm) > 0.8
        assert max(warm) > 0.94, "the pool was full again and again"
        assert loop.longest_gap <= 1, "in every step somebody got a token"
    assert 0 < tax(ours) < 0.05
    assert tax(theirs) > 3 * tax(ours)
    # And it is not bought with fewer answers.
    assert total(ours, "generated_tokens") > 0.98 * total(theirs, "generated_tokens")


def test_the_trace_is_the_same_and_chat_like():
    one, other = trace(3), trace(3)
    requests = [next(one) for _ in range(500)]
    assert requests == [next(other) for _ in range(500)]
    assert requests[0] != next(trace(4))
    assert all(50 <= len(request.prompt_ids) <= 600 for request in requests)
    lengths = [request.min_tokens for request in requests]
    assert 40 < min(lengths) < 60
    assert max(lengths) > 550
    limits = [request.max_tokens for request in requests]
    assert 80 < limits.count(None) < 170
    assert all(
        limit is None or request.min_tokens <= limit <= 4 * (request.min_tokens + 6)
        for request, limit in zip(requests, limits, strict=True)
    )
    stems = {request.prompt_ids[:50] for request in requests}
    assert 240 < len(stems) < 320, "half of them begin with one of eight stems"
