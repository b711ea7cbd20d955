"""Who is guessed for, what that costs where it does not pay, and what is told of it."""

import pytest

from gpu_worker.fake_engine import FakeModel
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.speculating import EDITOR, counters, drafting
from tests.scheduler_svc.core.test_prefix_cache import letters
from tests.scheduler_svc.core.timed_engine import MS, use_timed_engine


class Contrary(FakeModel):
    """Of a dozen tokens it says one that never followed the last two, as long as there is any."""

    def next_token(self, tokens, positions, sampling, constraints=None):
        """See FakeModel."""
        plain = FakeModel.next_token(self, tokens, positions, sampling)
        after = zip(tokens, tokens[1:], tokens[2:], strict=False)
        followed = {third for *pair, third in after if pair == list(tokens[-2:])}
        left = [token for token in range(12) if token not in followed] or range(12)
        return left[plain % len(left)]


# --- who is guessed for, and what it costs ----------------------------------------------------


def test_large_batches_do_not_guess():
    bench = Bench(model=EDITOR, r=8, N=1000)
    for number in range(5):
        bench.submit(f"r{number}", letters(12, seed=number), 60 + 5 * number)
    while len(bench.core.state.decoding) < 5:
        bench.step()
    before = counters(bench)[0]
    while len(bench.core.state.decoding) == 5:
        bench.step()
        assert max(bench.plans[-1].samples, default=0) <= 1
    bench.run()
    assert counters(bench)[0] > before, "the last ones are few"


def test_a_warm_cache_loses_next_to_nothing_to_guesses():
    """And is no reason not to guess: of a server that has run for a while, no slot is free."""
    evicted = {}
    for speculation in ("off", "auto"):
        bench = Bench(model=EDITOR, N=200, speculation=speculation)
        for number in range(8):
            bench.ask(f"r{number}", letters(30, seed=number), 5)
        assert bench.core.slot_books().free < 12
        bench.ask("x", letters(12, seed=99), 80)
        evicted[speculation] = bench.core.counters()["evicted_tokens"]
    assert counters(bench)[1] > 20
    assert evicted["auto"] <= evicted["off"] + 2 * bench.config.max_drafts


def test_what_is_borrowed_does_not_count_as_freed():
    freed = {}
    for speculation in ("off", "auto"):
        bench = Bench(model=EDITOR, N=400, speculation=speculation)
        bench.ask("x", letters(12), 80)
        freed[speculation] = bench.core.counters()["freed_slots"]
    drafted, accepted = counters(bench)
    assert drafted > accepted
    assert freed["auto"] == freed["off"]


def test_nothing_is_guessed_above_the_watermark():
    bench = Bench(model=EDITOR, N=100, high_watermark=0.6, low_watermark=0.5)
    bench.submit("x", letters(12), 70)
    while "x" not in bench.endings:
        used = 100 - bench.core.slot_books().free - bench.core.slot_books().evictable
        bench.step()
        if bench.plans and max(bench.plans[-1].samples) > 1:
            assert used < 60
            assert used + sum(bench.plans[-1].extend_lens) <= 60
    assert counters(bench)[1]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_text_that_never_says_what_was_guessed_costs_little(depth):
    """Its pairs repeat, and what follows them never does."""
    model, prompt = Contrary(eos_token_ids=()), letters(12)
    bench = Bench(model=model, depth=depth, N=800, L=700)
    assert bench.ask("x", prompt, 500) == model.generate(prompt, 500)
    # A draft costs a sixteenth of a step here, so a twelfth of them right is worth it.
    drafted, accepted = counters(bench)
    assert drafted <= 150
    assert accepted <= 12
    assert len(bench.plans) <= 502


def timed(per_row_ns, *, base_ns=5 * MS, wait_ns=0, num_tokens=400):
    """A long answer on a worker of known speed; plans sent, and ns by the worker's clock."""
    bench = Bench(model=EDITOR, N=1000, L=900)
    engine = use_timed_engine(bench, base_ns=base_ns, per_row_ns=per_row_ns, per_token_ns=MS)
    bench.submit("x", letters(12), num_tokens)
    spent_ns = 0
    while "x" not in bench.endings:
        while bench.schedule():
            pass
        alone = len(bench.sent) == 1
        result = bench.engine.execute(bench.sent.popleft())
        took_ns = engine.last_ns + (wait_ns if alone else 0)
        spent_ns += took_ns
        bench.now_ns += took_ns
        bench.take(bench.core.apply(result, bench.now_ns))
    assert bench.tokens["x"] == EDITOR.generate(letters(12), num_tokens)
    return bench, spent_ns


def test_cheap_drafts_save_time():
    bench, spent_ns = timed(MS // 10)
    assert spent_ns < 0.45 * 400 * 5.1 * MS
    predicted = [bench.core.state.step_time.predict_ns(rows, 0) for rows in (1, 5, 9)]
    assert predicted == pytest.approx([5 * MS + rows * MS // 10 for rows in (1, 5, 9)], rel=0.02)


def test_drafts_that_cost_a_step_each_are_given_up():
    bench, spent_ns = timed(5 * MS, base_ns=0)
    assert counters(bench)[0] < 40
    assert spent_ns < 1.05 * 400 * 5 * MS


def test_a_long_wait_for_answers_counts_against_it():
    """Each step with drafts loses ten times what a step takes."""
    bench, _ = timed(MS // 10, base_ns=MS, wait_ns=20 * MS)
    assert counters(bench)[0] < 40


def test_a_target_for_the_time_between_tokens_bounds_drafts():
    bench = Bench(model=EDITOR, N=1000, L=900, itl_target_ms=5.5)
    use_timed_engine(bench, base_ns=5 * MS, per_row_ns=MS // 10, per_token_ns=MS)
    bench.ask("x", letters(12), 300)
    late = [max(plan.samples) for plan in bench.plans[-40:]]
    assert max(late) == 5


# --- what is told of it -----------------------------------------------------------------------


def test_tenants_are_charged_for_what_they_got():
    bench = Bench(model=EDITOR, N=1000, r=2, waiting_order="vtc")
    bench.submit("x", letters(12), 60, tenant="a")
    bench.submit("y", letters(12, seed=3), 60, tenant="b")
    bench.run()
    drafted, accepted = counters(bench)
    assert drafted > accepted > 20
    books, found = bench.core.tenant_books(), bench.core.counters()
    for name in ("generated_tokens", "computed_tokens"):
        assert sum(getattr(view, name) for view in books.values()) == found[name]
    assert books["a"].generated_tokens == books["b"].generated_tokens == 60
    # 12 of the prompt, and 59 of output at twice the price: the first one came with the prompt.
    assert bench.core.state.ledger.service("a") == bench.core.state.ledger.service("b") == 130


def test_it_can_be_explained():
    bench = drafting()
    bench.answer()
    drafted, accepted = counters(bench)
    found = bench.core.explain("x", bench.now_ns)
    assert (found.request.drafted_tokens, found.request.accepted_tokens) == (drafted, accepted)
    assert f"{accepted} of {drafted} guessed ahead were right" in found.summary
    bench.run()
    ended = bench.core.explain("x", bench.now_ns)
    assert (ended.request.drafted_tokens, ended.request.accepted_tokens) == counters(bench)
    assert "guessed" not in bench.submit("y", [1], 5).core.explain("y", bench.now_ns).summary
