"""What stays of a victim: `partial`, `all`, `none`."""

from array import array

import pytest

from protos.plan import SamplingParams
from scheduler_svc.core.messages import Ending, PinLevel
from scheduler_svc.core.page_pool import Owner
from scheduler_svc.core.radix_node import PrefixKey
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

PAGES = pytest.mark.parametrize("page_size", [1, 4])
DEPTHS = pytest.mark.parametrize("depth", [1, 2])
KEEPS = pytest.mark.parametrize("keep", ["partial", "all", "none"])
TO_THE_LAST = {"high_watermark": 1.0, "low_watermark": 1.0, "decode_reserve": 0.0}


class Bank(Bench):
    """A bench with words for what is cached."""

    def start(self, name, prompt, max_tokens=40, *, outputs=10):
        """Submits a request and runs it until it has so many output tokens."""
        self.submit(name, prompt, max_tokens)
        while len(self.tokens[name]) < outputs:
            assert self.step()
        return self.core.state.live[name]

    def cut(self, request):
        """Cuts it back, and waits until what it held has come back; what is cached of it then."""
        self.core.state.retract(request)
        while self.core.state.leaving:
            self.answer()
        self.take([])
        return self.kept(request.tokens, request)

    def kept(self, tokens, request):
        """Whole pages of these tokens in the tree, in the namespace of a request."""
        whole = array("i", tokens)
        key = PrefixKey.of(request.namespace, whole, len(whole), self.config.page_size)
        return self.core.state.tree.peek(key)

    def settle(self):
        """Answers all plans; goes on until a stream needs a page for its next token."""
        while True:
            while self.sent:
                self.answer()
            if self.wanting():
                return
            assert self.schedule()

    def wanting(self):
        """Streams that need a page for their next token."""
        return [
            request
            for request in self.core.state.decoding.values()
            if request.num_computed == len(request.pages) * self.config.page_size
        ]

    def fill(self, num_free):
        """Gives a prompt that is part-way all free pages but so many."""
        hoard = next(iter(self.core.state.prefilling.values()))
        pool = self.core.state.pool
        hoard.pages.extend(pool.take(pool.num_free - num_free))
        return hoard


@PAGES
@DEPTHS
def test_all_frees_nothing_by_itself(page_size, depth):
    bench = Bank(N=256, p=page_size, depth=depth, retraction_keep="all")
    prompt = letters(20)
    victim = bench.start("a", prompt)
    other = bench.start("b", letters(20, seed=1), outputs=3)
    free, evicted = bench.core.state.pool.num_free, bench.core.state.tree.num_evicted_pages
    kept = bench.cut(victim)
    assert kept == bench.core.state.live["a"].most_computed // page_size
    # The rest of its last page is all that comes back, and what others took meanwhile.
    assert bench.core.state.tree.num_evicted_pages == evicted
    assert abs(bench.core.state.pool.num_free - free) <= 2
    bench.run()
    assert bench.core.counters()["recomputed_tokens"] < 2 * page_size
    assert bench.tokens["a"] == bench.reference(prompt, 40)
    assert bench.tokens["b"] == bench.reference(letters(20, seed=1), 40)
    assert other.num_retractions == 0


def full_pool(bench, num_free):
    """A victim, three more streams, and a prompt part-way, which has all pages but so many.

    Returns:
        The victim, and that prompt.
    """
    victim = bench.start("a", letters(20), 100, outputs=30)
    for i in range(1, 4):
        bench.start(f"b{i}", letters(9, seed=i), 100)
    bench.submit("hoard", letters(200, seed=7), 5)
    bench.step()
    bench.settle()
    return victim, bench.fill(num_free)


@DEPTHS
@pytest.mark.parametrize("keep", ["partial", "all"])
def test_all_lets_eviction_choose_and_partial_spares_what_is_colder(keep, depth):
    cold = letters(24, seed=9)
    bench = Bank(N=600, r=8, depth=depth, retraction_keep=keep, **TO_THE_LAST)
    bench.ask("cold", cold, 1)
    victim, _ = full_pool(bench, 0)
    computed = victim.num_computed
    kept = bench.cut(victim)
    assert bench.schedule(), "the streams took a slot each"
    if keep == "partial":
        assert kept == computed - 3, "the victim's own tail went"
        assert bench.kept(cold, victim) == 24, "and no prefix of another"
    else:
        assert kept == computed
        assert bench.kept(cold, victim) == 24 - 3, "the coldest went"


@PAGES
@DEPTHS
@pytest.mark.parametrize("num_free", [0, 1, 2, 3, 9])
def test_partial_frees_the_deficit_from_the_tail_page_by_page(page_size, depth, num_free):
    bench = Bank(N=600, p=page_size, r=8, depth=depth, **TO_THE_LAST)
    victim, hoard = full_pool(bench, num_free)
    num_wanted = sum(request is not victim for request in bench.wanting())
    computed = victim.num_computed
    kept = bench.cut(victim)
    # The page it had begun is not in the tree and comes back first.
    begun = 1 if computed % page_size else 0
    assert kept == computed // page_size - max(0, num_wanted - num_free - begun)
    bench.core.state.kv.give_up(hoard, 0)  # nobody holds more than it computes
    bench.run()
    assert bench.tokens["a"] == bench.reference(letters(20), 100)


@PAGES
@DEPTHS
def test_none_drops_all_it_alone_used(page_size, depth):
    bench = Bank(N=256, p=page_size, depth=depth, retraction_keep="none")
    victim = bench.start("a", letters(20))
    free = bench.core.state.pool.num_free + len(victim.pages)
    assert bench.cut(victim) == 0
    assert bench.core.state.pool.num_free == free
    computed = victim.most_computed
    bench.run()
    assert bench.core.counters()["recomputed_tokens"] == computed, "all of it, once"
    assert bench.tokens["a"] == bench.reference(letters(20), 40)


@PAGES
@DEPTHS
def test_none_keeps_what_was_computed_before_it_came(page_size, depth):
    bench = Bank(N=256, p=page_size, depth=depth, retraction_keep="none")
    stem = letters(16)
    bench.ask("before", stem, 2)
    victim = bench.start("a", [*stem, *letters(9, seed=1)])
    assert bench.cut(victim) == 16 // page_size
    assert bench.kept(stem, victim) == 16 // page_size
    bench.run()
    assert bench.tokens["a"] == bench.reference([*stem, *letters(9, seed=1)], 40)


@PAGES
@DEPTHS
def test_none_keeps_what_a_scored_prompt_had_to_compute_anew(page_size, depth):
    """It may not match what is cached, and it is not its own all the same."""
    bank = Bank(N=512, p=page_size, c=8, depth=depth, retraction_keep="none")
    stem = letters(40)
    bank.ask("before", stem, 1)
    bank.submit("scored", letters(72), 20, sampling=SamplingParams(prompt_logprobs=0))
    request = bank.core.state.live["scored"]
    while request.num_acked < 56:
        bank.step()
    assert request.cached_tokens == 0
    assert bank.cut(request) == bank.kept(stem, request) == 40 // page_size
    bank.run()
    assert bank.tokens["scored"] == bank.reference(letters(72), 20)
    assert bank.scores["scored"] == bank.model.score_prompt(letters(72), 0)


@PAGES
@DEPTHS
def test_none_keeps_what_others_hold(page_size, depth):
    bench = Bank(N=256, p=page_size, depth=depth, retraction_keep="none")
    stem = letters(16)
    victim = bench.start("a", [*stem, *letters(9, seed=1)], outputs=3)
    other = bench.start("b", [*stem, *letters(9, seed=2)], outputs=1)
    assert other.cached_tokens == 16
    assert bench.cut(victim) == 16 // page_size
    assert bench.core.num_running == 1
    bench.run()
    for name, seed in (("a", 1), ("b", 2)):
        assert bench.tokens[name] == bench.reference([*stem, *letters(9, seed=seed)], 40)


@PAGES
@DEPTHS
def test_none_keeps_what_another_continued(page_size, depth):
    """Somebody matched the victim's prefix and ended: what it added stays, and all beneath it."""
    bench = Bank(N=256, p=page_size, depth=depth, retraction_keep="none")
    prompt = letters(24)
    victim = bench.start("a", prompt, outputs=3)
    bench.submit("b", [*prompt[:16], *letters(9, seed=2)], 4)
    while "b" not in bench.endings:
        bench.step()
    assert bench.cut(victim) == 16 // page_size
    bench.run()
    assert bench.tokens["a"] == bench.reference(prompt, 40)


@PAGES
@DEPTHS
@pytest.mark.parametrize("level", [PinLevel.SOFT, PinLevel.HARD])
def test_none_keeps_what_is_pinned(page_size, depth, level):
    bench = Bank(N=256, p=page_size, depth=depth, retraction_keep="none")
    prompt = letters(24)
    victim = bench.start("a", prompt, outputs=3)
    bench.submit("pin", prompt[:12], 0, preheat=True, pin=level)
    while "pin" not in bench.endings:
        bench.step()
    assert bench.endings["pin"].ending is Ending.PREHEATED
    assert bench.endings["pin"].pin.num_tokens == 12
    assert bench.cut(victim) == 12 // page_size
    assert bench.core.list_pins(bench.now_ns)[0].kept_tokens == 12


@KEEPS
@DEPTHS
def test_of_no_store_nothing_is_kept(keep, depth):
    bench = Bank(N=256, depth=depth, retraction_keep=keep)
    bench.submit("a", letters(20), 30, no_store=True)
    while len(bench.tokens["a"]) < 10:
        bench.step()
    assert bench.cut(bench.core.state.live["a"]) == 0
    bench.run()
    assert bench.tokens["a"] == bench.reference(letters(20), 30)


@KEEPS
@DEPTHS
def test_after_a_flush_nothing_is_kept(keep, depth):
    bench = Bank(N=256, depth=depth, retraction_keep=keep)
    victim = bench.start("a", letters(20))
    bench.core.flush()
    assert bench.cut(victim) == 0
    bench.run()
    assert bench.tokens["a"] == bench.reference(letters(20), 40)


@DEPTHS
@pytest.mark.parametrize("keep", ["partial", "all"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_partial_keeps_a_victim_longer_than_who_has_finished(keep, depth, cancelled):
    """It is sure to return, and they are not, though they were used later."""
    bench = Bank(N=200, r=2, depth=depth, retraction_keep=keep)
    victim = bench.start("a", letters(40), 100, outputs=5)
    bench.submit("later", letters(30, seed=1), 2)
    while "later" not in bench.endings:
        assert bench.step()
    kept = bench.cut(victim)
    tree, state = bench.core.state.tree, bench.core.state
    later = letters(30, seed=1)
    assert bench.kept(later, victim) == 30
    # Whatever is matched last is warmest.
    tree.release(tree.acquire(PrefixKey.of(victim.namespace, array("i", later), 30, 1)))
    if cancelled:
        bench.cancel("a")
    pages = state.kv.take(state.pool.num_free + 20)
    spared, lost = ("a", "later") if keep == "partial" and not cancelled else ("later", "a")
    left = {"a": bench.kept(victim.tokens, victim), "later": bench.kept(later, victim)}
    whole = {"a": kept, "later": 30}
    assert left[spared] == whole[spared]
    assert left[lost] < whole[lost]
    state.pool.give_back(pages, Owner.PRIVATE)
    bench.run()
