"""A plan fits a message of the wire, whatever its new rows bring along."""

from array import array

import pytest

from protos.plan import Envelope, SamplingParams
from protos.wire import MAX_MESSAGE_BYTES, encode
from scheduler_svc.core import plan_builder
from scheduler_svc.core.plan_builder import MOST_NEW_ROW_BYTES
from scheduler_svc.core.views import WaitingReason
from tests.scheduler_svc.core.harness import OK_ENDINGS, Bench
from tests.scheduler_svc.core.test_prefix_cache import letters
from tokenizer_svc.constraints.forms import grammar_of
from tokenizer_svc.generation_request import Constraint

ABC = grammar_of(Constraint(kind="regex", text="(abc){3}"))
LARGE = ABC + " " * 1_500_000
"""As large as what a list of choices within the limits of the public face becomes."""
NUM_ROWS = 64
assert NUM_ROWS * len(LARGE) > MAX_MESSAGE_BYTES


def test_as_many_large_grammars_as_rows_come_in_several_plans():
    bench = Bench(N=4096, r=NUM_ROWS, c=64, L=64, wire=True)
    bench.submit("plain", letters(3), 20)
    for n in range(NUM_ROWS):
        bench.submit(f"x{n}", letters(4, seed=n), 20, sampling=SamplingParams(grammar=LARGE))
    bench.run()
    assert max(sum(len(new.sampling.grammar) for new in plan.new_rows) for plan in bench.plans) < (
        MOST_NEW_ROW_BYTES + len(LARGE)
    )
    for n in range(NUM_ROWS):
        assert bytes(bench.tokens[f"x{n}"][:9]) == b"abcabcabc"
    assert bench.tokens["plain"] == bench.reference(letters(3), 20)
    assert all(output.ending in OK_ENDINGS for output in bench.endings.values())


@pytest.mark.parametrize(
    ("sampling", "num_bytes"),
    [
        (SamplingParams(grammar="é" * 40), 2 * 40 + 4 * 12),
        (SamplingParams(repetition_penalty=2.0), 4 * 12),
    ],
)
def test_what_a_row_weighs_is_what_the_wire_carries(sampling, num_bytes, monkeypatch):
    """Rows beyond the limit wait for the next plan, and say that the step is full."""
    monkeypatch.setattr(plan_builder, "MOST_NEW_ROW_BYTES", 2 * num_bytes)
    monkeypatch.setattr(plan_builder, "COMPILE_WEIGHT", 1)
    bench = Bench(N=4096, c=64)
    for n in range(4):
        bench.submit(f"x{n}", letters(12, seed=n), 5, sampling=sampling)
    bench.schedule()
    (plan,) = bench.plans
    assert len(plan.new_rows) == 2
    assert len({new.sampling.grammar for new in plan.new_rows}) == 1, "else it weighs more"
    more = len(encode(Envelope(epoch=1, message=plan))) / 2
    assert num_bytes < more < num_bytes + 200
    views, _ = bench.core.list_requests(bench.now_ns, 10)
    reasons = [view.waiting_reason for view in views[2:]]
    assert reasons == [WaitingReason.NO_BUDGET, WaitingReason.BEHIND_OTHERS]


def test_large_grammars_to_compile_come_one_a_plan():
    """As all others wait while the worker does; small ones and more of the same come together."""
    bench = Bench(N=4096, r=32, c=64, L=64)
    large = [ABC + " " * (1_500_000 + n) for n in range(3)]
    small = [ABC + " " * n for n in range(12)]
    for n, grammar in enumerate([*large, *small, *large]):
        bench.submit(f"x{n}", letters(4, seed=n), 3, sampling=SamplingParams(grammar=grammar))
    bench.run()
    found = [[new.sampling.grammar for new in plan.new_rows] for plan in bench.plans]
    found = [set(grammars) for grammars in found if grammars]
    assert max(len(grammars & set(large)) for grammars in found) == 1
    assert max(len(grammars & set(small)) for grammars in found) == len(small)
    assert all(output.ending in OK_ENDINGS for output in bench.endings.values())


def test_cached_prefixes_weigh_too(monkeypatch):
    monkeypatch.setattr(plan_builder, "MOST_NEW_ROW_BYTES", 4 * 40)
    bench, prompt = Bench(N=4096, c=64), letters(40)
    bench.ask("warm", prompt, 1)
    for n in range(4):
        bench.submit(f"x{n}", [*prompt, n], 5)
    bench.run()
    counts = [sum(len(new.prefix_slots) for new in plan.new_rows) for plan in bench.plans]
    assert max(counts) == 40
    assert all(
        bench.tokens[f"x{n}"] == bench.reference(array("i", [*prompt, n]), 5) for n in range(4)
    )
