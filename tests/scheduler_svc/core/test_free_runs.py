"""Pages side by side: streams get runs, whatever is free is found, and nothing is given twice."""

import random
from array import array
from collections import deque
from itertools import pairwise

import pytest

from protos.plan import BatchResult, Hello
from scheduler_svc.core import free_runs, invariants
from scheduler_svc.core.config import SchedulerConfig
from scheduler_svc.core.messages import Submission
from scheduler_svc.core.page_pool import Owner, PagePool
from scheduler_svc.core.scheduler import Scheduler
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.speculating import drafting
from tests.scheduler_svc.core.test_prefix_cache import letters


def num_runs(pages):
    return 1 + sum(behind != page + 1 for page, behind in pairwise(pages))


class Day:
    """A busy day: always two waiting, half of the prompts share a stem; any tokens come out."""

    def __init__(self, *, num_slots, page_size, num_rows, num_requests, seed):
        self.rng, self.page_size, self.left = random.Random(seed), page_size, num_requests
        hello = Hello(
            instance_id=1,
            model_id="day",
            model_hash="day",
            vocab_size=50_000,
            eos_token_ids=(2,),
            num_slots=num_slots,
            max_rows=num_rows,
            max_length=8192,
            kv_dtype="float32",
            device="cpu",
            kind="fake",
        )
        config = SchedulerConfig(
            page_size=page_size,
            max_running=num_rows,
            chunk_size=512,
            max_batch_tokens=2048,
            speculation="off",
        )
        self.core = Scheduler(config, hello)
        self.stems = [self.tokens(200) for _ in range(20)]
        self.slots = array("i")
        self.num_pages = self.num_runs = 0

    def tokens(self, count):
        return [self.rng.randrange(1000, 50_000) for _ in range(count)]

    def submit(self):
        stem = self.rng.choice(self.stems) if self.rng.random() < 0.5 else []
        prompt = array("i", stem + self.tokens(self.rng.randint(100, 800)))
        fields = {"max_tokens": self.rng.randint(100, 400), "ignore_eos": True}
        self.core.submit(Submission(request_id=f"x{self.left}", prompt_ids=prompt, **fields), 0)
        self.left -= 1

    def look(self):
        """Counts the runs of what was decoded so far."""
        for request in self.core.state.decoding.values():
            if decoded := request.pages[-(-request.num_prompt // self.page_size) :]:
                self.num_pages += len(decoded)
                self.num_runs += num_runs(decoded)

    def run(self):
        sent, num_steps, quarter = deque(), 0, self.left * 3 // 4
        while True:
            while self.left and self.core.num_waiting < 2:
                self.submit()
            while (plan := self.core.schedule(num_steps * 10_000_000).plan) is not None:
                sent.append(plan)
                self.slots.extend(plan.out_slots)
            if not sent:
                break
            plan = sent.popleft()
            result = BatchResult(
                step_id=plan.step_id, token_ids=array("i", self.tokens(sum(plan.samples)))
            )
            self.core.apply(result, num_steps * 10_000_000)
            num_steps += 1
            if num_steps % 37 == 0 and self.left < quarter:  # the pool has been filled once
                self.look()
        invariants.check_idle(self.core)
        assert not self.core.state.kv._num_holders
        return self


@pytest.mark.parametrize(
    ("num_slots", "page_size", "floor"),
    [
        (65_536, 1, 15),  # measured: 26
        (16_384, 1, 3),  # 4.7: those that run hold two thirds of the pool
        (65_536, 16, 1.5),  # 2.2, of 16 tokens each
    ],
)
def test_streams_side_by_side_get_runs_though_the_cache_fills_the_pool(num_slots, page_size, floor):
    day = Day(num_slots=num_slots, page_size=page_size, num_rows=16, num_requests=150, seed=1).run()
    assert day.core.state.tree.num_evicted_pages > 0
    assert day.num_pages / day.num_runs > floor, "with a page each in turn it is 1"


def test_a_day_comes_out_the_same_again():
    fields = {"num_slots": 8192, "page_size": 1, "num_rows": 12, "num_requests": 40, "seed": 3}
    assert Day(**fields).run().slots == Day(**fields).run().slots


@pytest.mark.parametrize("p", [1, 4])
def test_streams_of_an_empty_pool_are_one_run_each(p):
    bench = Bench(N=4096, p=p, r=4, depth=2, c=16)
    for i in range(4):
        bench.submit(f"x{i}", letters(40, seed=i), 60)
    for _ in range(50):
        bench.step()
    running = list(bench.core.state.decoding.values())
    assert len(running) == 4
    for request in running:
        assert len(request.tokens) > 60
        assert num_runs(request.pages) == 1, "prompt, in chunks, and what was decoded"
    bench.run()


def test_a_stream_goes_on_side_by_side_when_its_drafts_were_answered():
    bench = drafting(N=1024, L=400, max_tokens=150)
    x = bench.core.state.live["x"]
    kinds = []
    while "x" not in bench.endings:
        kinds.append(max(bench.plans[-1].samples) > 1)
        assert num_runs(x.pages) == 1
        bench.step()
    assert (False, True) in pairwise(kinds)
    assert (True, False) in pairwise(kinds), "one token alone after a step with drafts"


def test_requests_that_ended_are_not_kept():
    bench = Bench()
    bench.ask("x", letters(8))
    assert not bench.core.state.kv._grown


def test_whoever_is_in_the_way_is_gone_round():
    pool = PagePool(100)
    first, second = pool.take(10, 0, 5), pool.take(10, 0, 5)
    assert (list(first), list(second)) == ([*range(1, 11)], [*range(16, 26)])
    last = array("i", [first[-1], second[-1]])
    for step in range(1, 6):
        last = pool.take_each(last, 5) if step == 1 else pool.take_each_again(5)
        assert list(last) == [10 + step, 25 + step]
    after = pool.take_each_again(5)
    assert after[1] == 31
    assert after[0] > 31 + 5, "and leaves the other its room"
    assert len(pool.free_pages()) == pool.num_free == 68


def test_a_long_stretch_stays_long_when_another_will_do():
    pool = PagePool(200)
    pages = pool.take(200)
    for start, end in ((0, 30), (50, 90), (110, 140)):
        pool.give_back(pages[start:end], Owner.PRIVATE)
    assert pool.take(5, 0, 100)[0] in (1, 51, 111), "no room for so much, so it begins anywhere"
    assert len(pool._runs._long) == 2, "the others were not looked at closely enough to judge"


def test_two_with_the_same_last_page_get_two_pages():
    pool = PagePool(50)
    pages = pool.take(10)
    pool.adopt(pages)
    last = array("i", [pages[-1]] * 3)
    taken = pool.take_each(last)
    assert taken[0] == 11
    assert len(dict.fromkeys(taken)) == 3


def test_a_page_that_came_back_twice_is_given_once():
    pool = PagePool(100)
    pages = pool.take(60)
    pool.take(40)
    pool.give_back(pages[40:], Owner.PRIVATE)
    again = pool.take_each(pages[39:40])  # the page behind, which is among those that came back
    assert list(again) == [41]
    pool.give_back(again, Owner.PRIVATE)
    pool.give_back(pages[:1], Owner.PRIVATE)
    assert sorted(pool.take(21)) == [1, *range(41, 61)]


@pytest.mark.parametrize("num_pages", [5, 64, 1000, 40_000])
def test_full_and_fragmented_pools_hand_out_every_page(num_pages):
    pool, rng = PagePool(num_pages), random.Random(num_pages)
    pages = pool.take(num_pages)
    assert sorted(pages) == [*range(1, num_pages + 1)]
    pool.give_back(pages[::2], Owner.PRIVATE)
    pool.give_back(pages[1::6], Owner.PRIVATE)
    taken = []
    while pool.num_free:
        taken += pool.take(min(pool.num_free, rng.choice([1, 1, 2, 7, 40])), rng.choice([0, 3]))
    free = sorted([*pages[::2], *pages[1::6]])
    assert sorted(taken) == free
    assert not pool.free_pages()


@pytest.mark.parametrize("num_pages", [30, 300, 3000])
def test_random_takes_and_returns_never_lose_or_double_a_page(num_pages):
    pool, rng = PagePool(num_pages), random.Random(7)
    held = []
    for _ in range(3000):
        free = pool.num_free
        if held and (not free or rng.random() < 0.5):
            pages = held.pop(rng.randrange(len(held)))
            kept = rng.randint(0, len(pages) - 1) if rng.random() < 0.5 else 0
            if kept:
                held.append(pages[:kept])
            if rng.random() < 0.5:
                pool.give_back(pages[kept:], Owner.PRIVATE)
            else:
                pool.put_back(pages[kept:])
        elif held and rng.random() < 0.6:
            growing = held[: rng.randint(1, free)]
            last = array("i", [pages[-1] for pages in growing])
            for _ in range(min(3, pool.num_free // len(growing))):
                last = pool.take_each(last, 4) if rng.random() < 0.5 else again(pool, last)
                for pages, page in zip(growing, last, strict=True):
                    pages.append(page)
        else:
            behind = rng.choice(held)[-1] if held else 0
            held.append(pool.take(rng.randint(1, free), behind, rng.randint(0, 20)))
        owned = sorted(page for pages in held for page in pages)
        assert len(dict.fromkeys(owned)) == len(owned) == num_pages - pool.num_free
        if rng.random() < 0.1:
            assert sorted([*owned, *pool.free_pages()]) == [*range(1, num_pages + 1)]


def again(pool, last):
    """As `take_each`, if these are the ones that were taken last."""
    if list(pool._front) != list(last):
        return pool.take_each(last, 4)
    return pool.take_each_again(4)


def test_nearly_full_and_fragmented_no_search_is_long():
    # Counted in bytes looked at, not in seconds: timed tests lie on a busy machine.
    looked = 0

    class Owners(bytearray):
        def find(self, what, start, end):
            nonlocal looked
            at = super().find(what, start, end)
            looked += (at if at >= 0 else end) - start
            return at

    num_pages = 200_000
    pool = PagePool(num_pages)
    pages = pool.take(num_pages)
    pool.give_back(pages[::1000], Owner.PRIVATE)
    pool._runs._owners = Owners(pool.owners)
    pool._runs._bytes = None  # no pass over all of them
    pool.owners = pool._runs._owners
    for _ in range(150):
        pool._runs.take(1, 0, 64)
    assert looked < 150 * free_runs._WINDOW // 64
