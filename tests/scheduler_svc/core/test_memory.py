"""Field cases of group C: capacity is counted exactly and never promised twice."""

import random
from array import array

import pytest

from scheduler_svc.core.eviction import lru
from scheduler_svc.core.messages import Ending
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.radix_node import Namespace, PrefixKey
from scheduler_svc.core.radix_tree import RadixTree
from tests.scheduler_svc.core.harness import Bench
from tests.scheduler_svc.core.test_prefix_cache import letters

PAGES = pytest.mark.parametrize("p", [1, 4, 16])
DEPTHS = pytest.mark.parametrize("depth", [1, 2])


@PAGES
@DEPTHS
def test_idle_books_are_exact_after_mixed_traffic(p, depth):  # field case 28
    bench, rng = Bench(p=p, depth=depth), random.Random(28)
    for round_number in range(4):
        wanted = {}
        for i in range(75):
            name = f"r{round_number}-{i}"
            prompt = letters(rng.randint(1, 40), seed=rng.randrange(6))
            stops = (rng.randrange(97, 123),) if rng.random() < 0.3 else ()
            wanted[name] = (prompt, stops)
            bench.submit(name, prompt, rng.randint(1, 12), stop_token_ids=stops)
            if rng.random() < 0.2:
                bench.step()
                if name not in bench.endings:
                    bench.cancel(name)
                    del wanted[name]
        bench.run()  # ends with the idle check
        for name, (prompt, stops) in wanted.items():
            said, ending = bench.tokens[name], bench.endings[name].ending
            assert said == bench.reference(prompt, 12)[: len(said)]
            assert said
            assert ending is (Ending.STOP if said[-1] in stops else Ending.LENGTH)


def test_last_slot_is_freed_once():  # field case 29
    bench = Bench(N=256, c=4)
    assert bench.ask("x", letters(5), 200) == bench.reference(letters(5), 200)
    for i in range(2):
        bench.submit(f"y{i}", letters(9, seed=i), 60)
    bench.run()
    assert all(bench.tokens[f"y{i}"] == bench.reference(letters(9, seed=i), 60) for i in range(2))


@DEPTHS
def test_burst_on_a_pool_that_is_nearly_full(depth):  # field case 31
    bench = Bench(N=64, p=4, r=8, depth=depth)
    for i in range(40):
        bench.submit(f"x{i}", letters(13, seed=i), 9)
    bench.run()
    for i in range(40):
        assert bench.tokens[f"x{i}"] == bench.reference(letters(13, seed=i), 9)


def test_page_rounding_is_part_of_the_need():  # field case 32
    bench = Bench(N=64, p=16, r=8)
    for i in range(5):
        bench.submit(f"x{i}", letters(17, seed=i), 9)
    bench.run()
    assert max(len(plan.rows) for plan in bench.plans) == 2
    assert not bench.core.counters()["retractions"]
    assert {output.ending for output in bench.endings.values()} == {Ending.LENGTH}


@pytest.mark.parametrize("r", [1, 2])
def test_rows_run_out_before_slots_do(r):  # field case 33
    bench = Bench(N=1024, r=r)
    for i in range(20):
        bench.submit(f"x{i}", letters(6, seed=i), 4)
    most = 0
    while bench.step():
        most = max(most, bench.core.num_running)
    assert most <= r
    assert all(bench.tokens[f"x{i}"] == bench.reference(letters(6, seed=i), 4) for i in range(20))


@PAGES
def test_what_can_never_fit_is_refused_with_both_numbers(p):  # field case 34
    bench = Bench(N=64, p=p, L=256)
    bench.submit("huge", letters(100))
    refusal = bench.endings["huge"]
    assert refusal.ending is Ending.REJECTED_TOO_LARGE
    assert "100" in refusal.message
    assert "64" in refusal.message
    assert bench.ask("small", letters(5)) == bench.reference(letters(5))
    for n, fits in ((63, True), (64, True), (65, False)):
        bench.submit(f"n{n}", letters(n, seed=n), 1)
        bench.run()
        assert (bench.endings[f"n{n}"].ending is Ending.LENGTH) is fits
        if fits:
            assert bench.tokens[f"n{n}"] == bench.reference(letters(n, seed=n), 1)


@PAGES
@DEPTHS
def test_alone_and_out_of_room_ends_with_what_there_is(p, depth):  # field case 35
    bench = Bench(N=32, p=p, depth=depth)
    got = bench.ask("x", letters(28), 20)
    assert bench.endings["x"].ending is Ending.POOL_FULL
    assert "32" in bench.endings["x"].message
    assert got == bench.reference(letters(28), 20)[:5], "32 slots and one token more"
    assert bench.ask("alive", letters(5)) == bench.reference(letters(5))


def test_nobody_waits_before_an_empty_engine():  # field case 36
    rng = random.Random(36)
    bench = Bench(N=64, p=4, r=6)
    for i in range(120):
        bench.submit(f"x{i}", letters(rng.randint(1, 40), seed=i % 7), rng.randint(1, 20))
        if rng.random() < 0.3 and f"x{i}" not in bench.endings:
            bench.cancel(f"x{i}")
        if rng.random() < 0.5:
            bench.step()
        idle = not bench.core.num_running and not bench.core.num_in_flight
        if idle and bench.core.num_waiting:
            assert bench.schedule(), "somebody waits and nobody runs"
    bench.run()
    for i in range(20):
        assert bench.ask(f"fresh{i}", letters(5, seed=i)) == bench.reference(letters(5, seed=i))


def test_reuse_never_lets_a_step_exceed_its_budget():  # field case 37
    bench = Bench(N=512, c=32, r=10, max_batch_tokens=32)
    stem = letters(60)
    bench.ask("warm", stem)
    for i in range(10):
        bench.submit(f"x{i}", stem + letters(7, seed=i))
    bench.run()
    assert max(sum(plan.extend_lens) for plan in bench.plans) <= 32
    assert all(
        bench.tokens[f"x{i}"] == bench.reference(stem + letters(7, seed=i)) for i in range(10)
    )


def test_limits_of_length():  # field case 88
    bench = Bench(L=40)
    for n in (38, 39):
        for max_tokens in (1, 5, 1000):
            name = f"{n}-{max_tokens}"
            got = bench.ask(name, letters(n), max_tokens)
            assert len(got) == min(max_tokens, 40 - n)
            assert bench.endings[name].ending is Ending.LENGTH
    for n in (40, 41):
        bench.submit(f"n{n}", letters(n), 1)
        refusal = bench.endings[f"n{n}"]
        assert refusal.ending is Ending.REJECTED_INVALID
        assert str(n) in refusal.message
        assert "40" in refusal.message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 264]}, "prompt_ids"),
        ({"prompt": [-1]}, "prompt_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_token_ids": (264,)}, "stop_token_ids"),
        ({"resume_output_ids": [-5]}, "resume_output_ids"),
    ],
)
def test_bad_values_are_refused_by_name(fields, field):  # field cases 82, 87, 89
    bench = Bench()
    bench.submit("bad", fields.pop("prompt", [1]), **fields)
    assert bench.endings["bad"].ending is Ending.REJECTED_INVALID
    assert bench.endings["bad"].field == field
    assert bench.ask("next", letters(5)) == bench.reference(letters(5))


def test_queue_is_bounded_and_victims_are_not_refused():
    bench = Bench(N=32, r=4, max_waiting=2)
    for i in range(5):
        bench.submit(f"x{i}", letters(4, seed=i), 20)
    full = [n for n, o in bench.endings.items() if o.ending is Ending.REJECTED_QUEUE_FULL]
    assert full == ["x2", "x3", "x4"]
    carried = bench.reference(letters(4, seed=60), 20)
    bench.submit("carried", letters(4, seed=60), 20, resume_output_ids=carried[:3])
    assert "carried" not in bench.endings
    for _ in range(3):
        bench.step()
    bench.submit("y0", letters(4, seed=50), 20)
    bench.submit("y1", letters(4, seed=51), 20)
    bench.run()
    assert bench.tokens["carried"] == carried[3:]
    for name, seed in (("x0", 0), ("x1", 1), ("y0", 50), ("y1", 51)):
        assert bench.tokens[name] == bench.reference(letters(4, seed=seed), 20)


def test_eviction_costs_the_same_in_a_large_tree():  # field case 12
    # Counted in looks at nodes, not in seconds: timed tests lie on a busy machine.
    num_leaves, looks = 20_000, 0

    def counting_lru(node):
        nonlocal looks
        looks += 1
        return lru(node)

    pool = PagePool(num_leaves)
    tree = RadixTree(pool, 1, counting_lru)
    namespace = Namespace("", "", "", "weights", "float32")

    def insert(token):
        key = PrefixKey(namespace, array("i", [token]).tobytes())
        tree.release(tree.insert(key, pool.take(1)).lease)

    for token in range(num_leaves):
        insert(token)
    looks_to_fill = looks
    for token in range(num_leaves, num_leaves + 500):
        assert pool.num_free == 0
        assert tree.evict(1) == 1
        insert(token)
    assert looks - looks_to_fill <= 500 * 3
    assert len(tree._queue) <= tree.num_nodes
    lease = tree.acquire(PrefixKey(namespace, array("i", [0]).tobytes()))
    assert not lease.num_pages, "the least recently used went first"
