"""A fixed story for the scheduler core; prints a digest of everything the core said.

Run as a process of its own by test_determinism, under several hash seeds.  The worker in it answers
with a function of its inputs, so that a plan that differs anywhere changes all that follows.
"""

from __future__ import annotations

import hashlib
import random
from array import array

from protos import wire
from protos.plan import BatchPlan, BatchResult, Envelope, Hello, SamplingParams
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Submission
from scheduler_svc.core.scheduler import Scheduler

NUM_EVENTS = 1500
TINY = Hello(
    instance_id=1,
    model_id="replay",
    model_hash="replay",
    vocab_size=2,
    eos_token_ids=(),
    num_slots=64,
    max_rows=8,
    max_length=48,
    kv_dtype="float32",
    device="cpu",
    kind="fake",
)


def answer(plan: BatchPlan) -> BatchResult:
    """A token for each sampling row, as a function of the plan alone."""
    digest = hashlib.sha256(wire.encode(Envelope(epoch=1, message=plan))).digest()
    tokens, counts = array("i"), bytearray()
    end = 0
    for extend_len, num_samples in zip(plan.extend_lens, plan.samples, strict=True):
        end += extend_len
        first = len(tokens)
        for at in range(end - num_samples, end):
            if len(tokens) > first and plan.input_ids[at] != tokens[-1]:
                break  # a draft that was wrong
            tokens.append(digest[len(tokens) % 32] & 1)
        if num_samples:
            counts.append(len(tokens) - first)
    return BatchResult(step_id=plan.step_id, token_ids=tokens, num_sampled=bytes(counts))


def submission(story: random.Random, number: int) -> Submission:
    """A request over an alphabet of two tokens: short prompts share prefixes at once."""
    return Submission(
        request_id=f"request-{number}",
        prompt_ids=array("i", story.choices((0, 1), k=story.randint(1, 30))),
        sampling=SamplingParams(seed=number),
        max_tokens=story.randint(1, 20),
        cache_domain=story.choice(("", "a", "b")),
        deadline_ns=story.choice((None, number + 500)),
    )


def tell(waiting_order: str) -> tuple[str, int]:
    """A digest of every plan and output of the story, and how many plans there were."""
    story = random.Random(7)
    config = SchedulerConfig(max_batch_tokens=24, chunk_size=8, waiting_order=waiting_order)
    core = Scheduler(config, TINY)
    said = hashlib.sha256()
    in_flight: list[BatchPlan] = []
    num_plans = 0
    for now_ns in range(NUM_EVENTS):
        event = story.random()
        if event < 0.2:
            outputs = core.submit(submission(story, now_ns), now_ns)
        elif event < 0.23:
            outputs = core.cancel(f"request-{story.randint(0, now_ns)}", now_ns)
        elif event < 0.6 and in_flight:
            outputs = core.apply(answer(in_flight.pop(0)), now_ns)
        else:
            step = core.schedule(now_ns)
            outputs = step.outputs
            if step.plan is not None:
                in_flight.append(step.plan)
                data = wire.encode(Envelope(epoch=1, message=step.plan))
                assert wire.decode(data).message == step.plan
                said.update(data)
                num_plans += 1
        said.update(repr(outputs).encode())
        said.update(repr(core.slot_books()).encode())
    return said.hexdigest(), num_plans


if __name__ == "__main__":
    for order in ("fcfs", "lpm"):
        digest, num_plans = tell(order)
        assert num_plans > 100, num_plans
        print(order, digest, num_plans)
