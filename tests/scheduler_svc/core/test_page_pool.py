"""One owner a page: what is given back is free exactly when nobody can read it any more."""

import pytest

from scheduler_svc.core.page_pool import Owner, PagePool
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters


def test_pages_come_in_order_and_page_zero_never():
    pool = PagePool(8)
    assert list(pool.take(3)) == [1, 2, 3]
    assert len(pool.take(0)) == 0
    assert sorted(pool.take(5)) == [4, 5, 6, 7, 8]
    assert pool.num_free == 0
    with pytest.raises(AssertionError):
        pool.take(1)


def test_a_page_given_back_twice_stops_at_once():
    pool = PagePool(4)
    pages = pool.take(2)
    pool.give_back(pages, Owner.PRIVATE)
    with pytest.raises(AssertionError):
        pool.give_back(pages, Owner.PRIVATE)
    with pytest.raises(AssertionError):
        pool.adopt(pages[:1])


def test_retired_pages_wait_for_the_last_plan_that_may_name_them():
    pool = PagePool(8)
    first, second = pool.take(2), pool.take(3)
    pool.retire(first, last_step_id=5)
    pool.retire(second, last_step_id=6)
    assert (pool.num_free, pool.num_in_flight) == (3, 5)
    pool.settle(4)
    assert pool.num_in_flight == 5
    pool.settle(5)
    assert (pool.num_in_flight, sorted(pool.in_flight_pages())) == (3, list(second))
    assert all(pool.owners[page] == Owner.FREE for page in first)
    pool.settle(6)
    assert (pool.num_free, pool.num_in_flight) == (8, 0)


def test_a_twins_own_pages_outlive_the_plan_that_reads_them():
    bench = Bench(N=64, p=1, c=20, r=4, depth=2)
    for name in ("a", "b"):
        bench.submit(name, letters(20), 20)
    assert bench.schedule()
    assert bench.schedule(), "both decode in a second plan, from their own slots"
    bench.answer()
    assert bench.core.slot_books().in_flight == 20, "the loser's copies, read by the second plan"
    bench.answer()
    assert bench.core.slot_books().in_flight == 0
    bench.run()
