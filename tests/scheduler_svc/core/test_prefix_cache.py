"""Field cases of group A: reuse is right, isolated, and as large as it can be."""

import random
from array import array
from dataclasses import replace

import pytest

from scheduler_svc.core import invariants
from scheduler_svc.core.messages import Ending
from scheduler_svc.core.radix_node import Namespace, PrefixKey
from tests.scheduler_svc.core.harness import Bench

PAGES = pytest.mark.parametrize("p", [1, 4, 16])


def letters(num_tokens, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(97, 123) for _ in range(num_tokens)]


def whole(num_tokens, p):
    return num_tokens - num_tokens % p


@PAGES
def test_warm_answer_equals_cold_answer(p):  # field case 1
    bench = Bench(p=p)
    prompt = letters(33)
    longer = prompt + letters(3, seed=1)
    other = prompt[:20] + letters(10, seed=2)
    for request_id, asked, cached in (
        ("cold", prompt, 0),
        ("warm", prompt, whole(32, p)),
        ("longer", longer, whole(33, p)),
        ("other", other, whole(20, p)),
    ):
        assert bench.ask(request_id, asked) == bench.reference(asked)
        assert bench.cached[request_id] == cached


@PAGES
@pytest.mark.parametrize("delta", [-1, 0, 1])
def test_rows_with_and_without_prefix_in_one_batch(p, delta):  # field case 2
    bench = Bench(p=p, c=8, r=4)
    base = letters(40)
    bench.ask("warm-up", base)
    prompts = {
        "none": letters(12, seed=5),
        "one": base[:1] + letters(9, seed=6),
        "chunk": base[:8] + letters(9, seed=7),
        "page": base[: max(1, p + delta)] + letters(9, seed=8),
    }
    for request_id, prompt in prompts.items():
        bench.submit(request_id, prompt)
    bench.run()
    assert {name: bench.tokens[name] for name in prompts} == {
        name: bench.reference(prompt) for name, prompt in prompts.items()
    }


def test_same_prompt_many_times():  # field case 3
    bench = Bench(p=1)
    prompt = letters(30)
    answers = [bench.ask(f"a{i}", prompt) for i in range(4)]
    for i in range(5):
        bench.ask(f"noise{i}", letters(25, seed=10 + i))
    answers += [bench.ask(f"b{i}", prompt) for i in range(4)]
    assert answers == [bench.reference(prompt)] * 8


@PAGES
def test_ended_early_by_a_stop_token_shares_only_what_is_real(p):  # field case 4
    bench = Bench(p=p)
    prompt = letters(20)
    said = bench.reference(prompt, 12)
    stop = next(token for i, token in enumerate(said) if i >= 3 and token not in said[:i])
    got = bench.ask("stopped", prompt, 12, stop_token_ids=(stop,))
    assert got == said[: said.index(stop) + 1]
    assert bench.endings["stopped"].ending is Ending.STOP
    target = prompt + got + letters(5, seed=3)
    assert bench.ask("target", target) == bench.reference(target)
    assert bench.cached["target"] <= len(prompt) + len(got)


@pytest.mark.parametrize("depth", [1, 2])
def test_twins_computed_in_parallel_keep_their_slots(depth):  # field case 5
    bench = Bench(N=64, p=1, c=20, r=4, depth=depth)
    prompt, other = letters(20), letters(20, seed=1)
    bench.submit("r1", prompt, 20)
    bench.submit("r2", prompt, 20)
    for _ in range(5):
        bench.step()
    assert any(plan.remaps for plan in bench.plans), "both were computed and one moved over"
    bench.submit("r3", other, 20)
    bench.run()
    assert bench.tokens["r1"] == bench.tokens["r2"] == bench.reference(prompt, 20)
    assert bench.tokens["r3"] == bench.reference(other, 20)


@PAGES
def test_cancelled_chunks_never_poison_the_tree(p):  # field case 6
    bench, rng, prompt = Bench(p=p, c=4), random.Random(6), letters(40)
    for i in range(30):
        bench.submit(f"x{i}", prompt)
        for _ in range(rng.randrange(1, 11)):
            bench.step()
        bench.cancel(f"x{i}") if f"x{i}" not in bench.endings else None
        bench.run()
    assert bench.ask("whole", prompt) == bench.reference(prompt)


def test_exact_repeat_computes_one_token():  # field case 7
    bench, prompt = Bench(p=1), letters(50)
    bench.ask("first", prompt, 1)
    before = bench.core.counters()["computed_tokens"]
    bench.ask("second", prompt, 1)
    assert bench.cached["second"] == 49
    assert bench.core.counters()["computed_tokens"] == before + 1


@PAGES
def test_next_turn_of_a_conversation_hits(p):  # field case 8
    bench, prompt = Bench(p=p), letters(30)
    answer = bench.ask("turn1", prompt, 10)
    turn2 = prompt + answer + letters(12, seed=4)
    assert bench.ask("turn2", turn2, 10) == bench.reference(turn2, 10)
    assert bench.cached["turn2"] >= whole(39, p)


@PAGES
def test_lengths_around_whole_pages(p):  # field case 9
    bench = Bench(p=p)
    for n in (4, 8, 12, 3, 7, 11, 5, 9, 13, 16, 17, 32):
        prompt = letters(n, seed=n)
        for i in range(3):
            assert bench.ask(f"{n}-{i}", prompt, 1) == bench.reference(prompt, 1)
            assert bench.cached[f"{n}-{i}"] == (whole(n - 1, p) if i else 0)
        for more in (1, 4):
            longer = prompt + letters(more, seed=99)
            assert bench.ask(f"{n}+{more}", longer) == bench.reference(longer)
        bench.core.flush()


def test_divergence_inside_a_page_and_keys_shorter_than_one():  # field case 10
    bench = Bench(N=64, p=4)
    for n in range(1, 6):
        assert bench.ask(f"short{n}", letters(n)) == bench.reference(letters(n))
    base = letters(12)
    for position in range(9):
        changed = [*base[:position], 65, *base[position + 1 :]]
        for name, prompt in ((f"a{position}", base), (f"b{position}", changed)):
            assert bench.ask(name, prompt) == bench.reference(prompt)
    state = bench.core.state
    state.tree.evict(state.pool.num_pages)  # everything
    invariants.check_idle(bench.core)
    assert bench.core.slot_books().free == 64
    assert not bench.core.num_tree_nodes


@pytest.mark.parametrize(("num_tokens", "growing"), [(1000, True), (5000, False)])
def test_thousands_of_nested_prefixes(num_tokens, growing):  # field case 11
    # Through the tree itself, since the slot-true worker would hash 12 million tokens.
    bench = Bench(N=8192, p=1, c=64, L=6000)
    tree, pool = bench.core.state.tree, bench.core.state.pool
    namespace, tokens = Namespace("", "", "", "m", "kv"), array("i", [97] * num_tokens)
    pages = array("i")
    for length in range(1, num_tokens + 1) if growing else [num_tokens]:
        pages += pool.take(length - len(pages))
        tree.release(tree.insert(PrefixKey.of(namespace, tokens, length, 1), pages).lease)
    for length in range(num_tokens - 1, 0, -1):  # each one a split, or found as it is
        tree.release(tree.acquire(PrefixKey.of(namespace, tokens, length, 1)))
    assert tree.num_nodes == num_tokens
    invariants.check_idle(bench.core)
    lease = tree.acquire(PrefixKey.of(namespace, tokens, num_tokens - 1, 1))
    assert tree.path_pages(lease) == pages[:-1]
    tree.release(lease)
    assert len(bench.core.dump_tree(10_000)[0]) == num_tokens + 1
    assert tree.evict(num_tokens // 2) == num_tokens // 2
    invariants.check_idle(bench.core)
    assert bench.core.flush() == num_tokens // 2
    invariants.check_idle(bench.core)


def test_nested_prefixes_through_the_scheduler():  # field case 11
    bench = Bench(N=700, p=1, c=64, r=8, L=512)
    for length in range(1, 300):
        bench.submit(f"n{length}", [97] * length, 1)
    bench.run()
    assert all(
        bench.tokens[f"n{length}"] == bench.reference([97] * length, 1) for length in (1, 150, 299)
    )
    bench.core.flush()
    invariants.check_idle(bench.core)


@PAGES
def test_domains_do_not_see_each_other(p):  # field case 14
    bench, prompt = Bench(p=p), letters(64)
    bench.ask("a", prompt, cache_domain="tenant-a")
    bench.ask("b", prompt, cache_domain="tenant-b")
    bench.ask("again", prompt, cache_domain="tenant-a")
    assert (bench.cached["b"], bench.cached["again"]) == (0, whole(63, p))


def test_other_weights_never_match():  # field case 16
    bench, prompt = Bench(p=1), letters(20)
    bench.ask("old", prompt)
    bench.submit("caught", letters(5, seed=1), 50)
    bench.step()
    bench.sent.clear()
    bench.engine.reset()
    new = replace(bench.engine.hello(), model_hash="other weights", weights="int4")
    bench.take(bench.core.lose_worker(0))
    bench.take(bench.core.regain_worker(new, 0))
    assert bench.endings["caught"].ending is Ending.FAILED
    named = f"another model: {new.model_id}, weights in int4"
    assert bench.endings["caught"].message.endswith(named), "the name may be the same"
    assert bench.ask("new", prompt) == bench.reference(prompt)
    assert bench.cached["new"] == 0


@pytest.mark.parametrize("busy", [False, True])
def test_flush_takes_effect_at_once(busy):  # field case 17
    bench, prompt = Bench(p=1, r=1, N=400, waiting_order="fcfs"), letters(40)
    bench.ask("warm", prompt)
    if busy:
        for i in range(4):
            bench.submit(f"busy{i}", prompt + letters(5, seed=i), 30)
        for _ in range(4):
            bench.step()
        assert bench.core.num_running == 1
    assert bench.core.flush() > 0
    invariants.check(bench.core)
    bench.submit("after", prompt)
    bench.run()
    assert bench.cached["busy1" if busy else "after"] == 0, "the first to start after it"
    for i in range(4 if busy else 0):
        asked = prompt + letters(5, seed=i)
        assert bench.tokens[f"busy{i}"] == bench.reference(asked, 30)
    assert bench.tokens["after"] == bench.reference(prompt)


def test_flush_under_load_hides_what_was_computed_before_it():  # field case 17
    bench, prompt = Bench(p=1, r=2), letters(40)
    bench.submit("running", prompt, 60)
    for _ in range(12):
        bench.step()
    assert bench.core.num_running == 1
    bench.core.flush()
    bench.submit("after", prompt, 1)
    bench.run()
    assert bench.cached["after"] == 0
    bench.ask("again", prompt, 1)
    assert bench.cached["again"] == 39, "only what was computed after the flush is shared"


@pytest.mark.parametrize("depth", [1, 2])
def test_flush_between_two_chunks(depth):  # field case 17
    bench, prompt = Bench(c=8, r=1, depth=depth), letters(40)
    bench.submit("half", prompt, 1)
    for _ in range(2):
        bench.step()
    bench.core.flush()
    while "half" not in bench.endings:
        bench.step()
        matchable = [node for node in bench.core.state.tree.nodes() if node.pages]
        assert not matchable, "its first chunks are older than the flush"
    bench.run()
    assert bench.tokens["half"] == bench.reference(prompt, 1)
    bench.ask("after", prompt, 1)
    assert bench.cached["after"] == 0


@PAGES
@pytest.mark.parametrize("length", [6, 8, 9, 40])
def test_no_store_leaves_nothing_behind(p, length):  # field case 18
    bench, prompt = Bench(p=p, c=8), letters(length)
    assert bench.ask("secret", prompt, no_store=True) == bench.reference(prompt)
    assert bench.core.slot_books().free == bench.core.slot_books().total
    bench.ask("later", prompt)
    assert bench.cached["later"] == 0


def test_two_prompts_in_turn_both_hit():  # field case 19
    a, b = letters(30, seed=1), letters(30, seed=2)
    roomy = Bench(N=128, p=1)
    for name, prompt in (("a1", a), ("b1", b), ("a2", a), ("b2", b)):
        assert roomy.ask(name, prompt, 2) == roomy.reference(prompt, 2)
    assert (roomy.cached["a2"], roomy.cached["b2"]) == (29, 29)
    tight = Bench(N=40, p=1)
    for name, prompt in (("a1", a), ("b1", b), ("a2", a), ("b2", b)):
        assert tight.ask(name, prompt, 2) == tight.reference(prompt, 2)
    # Least recently used goes first, from the tail: what is left of it still hits.
    assert tight.cached["a2"] < 29


def test_early_change_shows_in_the_cached_count():  # field case 79
    bench, prompt = Bench(N=512, p=4, c=64, L=300), letters(200)
    bench.ask("first", prompt, 1)
    changed = [*prompt[:5], 65, *prompt[6:]]
    bench.ask("changed", changed, 1)
    assert bench.cached["changed"] == whole(5, 4)
