"""The drafter alone: what it guesses, how sure it is, and what it costs to know."""

from array import array

import pytest

from scheduler_svc.core.drafts import (
    FIRST_RATES,
    LEARNING,
    MOST_A_CALL,
    MOST_INDEXED,
    MOST_READ,
    Drafter,
    continuation,
)
from scheduler_svc.core.eviction import EVICTION_POLICIES
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.radix_node import Lease, Namespace, PrefixKey
from scheduler_svc.core.radix_tree import RadixTree

OURS = Namespace("", "ours", "", "model", "float32")
THEIRS = Namespace("", "theirs", "", "model", "float32")


def guess(drafter, most=8):
    return list(drafter.drafts(len(drafter.odds(most))))


def drafter_of(tokens):
    tokens = array("i", tokens)
    drafter = Drafter(tokens)
    drafter.look(None, 0, 1)
    return drafter, tokens


class Tree:
    """A tree filled with plain lists of tokens."""

    def __init__(self, page_size=1):
        self.page_size = page_size
        self.pool = PagePool(1000)
        self.tree = RadixTree(self.pool, page_size, EVICTION_POLICIES["lru"])

    def insert(self, tokens, namespace=OURS):
        key = PrefixKey.of(namespace, array("i", tokens), len(tokens), self.page_size)
        pages = self.pool.take(len(tokens) // self.page_size)
        inserted = self.tree.insert(key, pages)
        self.pool.give_back(pages[: inserted.num_existing_pages], 1)
        self.tree.release(inserted.lease)

    def lease(self, tokens, namespace=OURS) -> Lease:
        return self.tree.acquire(
            PrefixKey.of(namespace, array("i", tokens), len(tokens), self.page_size)
        )

    def next(self, leased, tokens):
        lease = self.lease(leased)
        try:
            return list(continuation(lease, array("i", tokens), self.page_size))
        finally:
            self.tree.release(lease)


# --- the request's own tokens -----------------------------------------------------------------


def test_three_tokens_say_more_than_two():
    drafter, _ = drafter_of([1, 2, 3, 40, 9, 2, 3, 50, 8, 1, 2, 3])
    assert guess(drafter, 3) == [40, 9, 2]
    assert drafter.odds(2) == [FIRST_RATES[3], FIRST_RATES[3] * FIRST_RATES[4]]
    drafter, _ = drafter_of([1, 2, 3, 40, 9, 2, 3, 50, 8, 7, 2, 3])
    assert guess(drafter, 2) == [50, 8], "and of two places, the later one counts"
    assert drafter.odds(1) == [FIRST_RATES[2]]


@pytest.mark.parametrize("tokens", [[], [5], [5, 5], [1, 2, 3, 4, 5], [1, 2, 3, 1]])
def test_nothing_is_guessed_where_nothing_was_said_before(tokens):
    drafter, _ = drafter_of(tokens)
    assert drafter.odds(8) == []
    assert guess(drafter) == []


def test_a_repeating_text_is_guessed_beyond_its_end():
    drafter, _ = drafter_of([7, 1, 2, 3, 1, 2, 3, 1, 2])
    assert guess(drafter, 7) == [3, 1, 2, 3, 1, 2, 3]
    assert guess(drafter_of([4] * 4)[0], 5) == [4] * 5


def test_a_guess_is_followed_while_it_holds_and_judged_where_it_ends():
    drafter, tokens = drafter_of([1, 2, 3, 10, 11, 12, 13, 14, 1, 2, 3])
    rates = list(FIRST_RATES)
    tokens.extend([10, 11])
    drafter.look(None, 0, 1)
    assert guess(drafter, 2) == [12, 13]
    for matched in (3, 4):
        rates[matched] += (1 - rates[matched]) * LEARNING
    assert drafter.odds(1) == [rates[5]]
    tokens.append(99)
    drafter.look(None, 0, 1)
    rates[5] *= 1 - LEARNING
    assert guess(drafter, 2) == [13, 14], "as if one word had been replaced"
    assert drafter.odds(2) == [rates[0], rates[0] * rates[1]]
    tokens.extend([1, 2, 3])
    drafter.look(None, 0, 1)
    rates[0] *= (1 - LEARNING) ** 2  # it was wrong about 1, about 2, and about 3
    assert guess(drafter, 3) == [10, 11, 99], "the last time counts"
    assert drafter.odds(3) == pytest.approx(
        [rates[3], rates[3] * rates[4], rates[3] * rates[4] * rates[5]]
    )


def test_rates_end_where_the_text_is_fair():
    drafter, tokens = drafter_of([1, 2, 3])
    for round_ in range(300):
        tokens.extend([1, 2, 3] if round_ % 2 else [9, 2, 3])
        drafter.look(None, 0, 1)
    assert all(0.0 <= rate <= 1.0 for rate in drafter.odds(8))


def test_a_long_prompt_is_taken_in_piece_by_piece():
    tokens = [*range(5000, 5000 + 2 * MOST_A_CALL), 1, 2, 3, 77, *range(9000, 9500), 1, 2, 3]
    drafter, _ = drafter_of(tokens)
    looks = 1
    while not drafter.odds(1):
        drafter.look(None, 0, 1)
        looks += 1
    assert guess(drafter, 1) == [77]
    assert looks == 3
    drafter, _ = drafter_of([1, 2, 3, 77, *range(10, 10 + MOST_INDEXED), 1, 2, 3])
    for _ in range(MOST_INDEXED // MOST_A_CALL + 2):
        drafter.look(None, 0, 1)
    assert drafter.odds(1) == [], "what is very long ago is not looked at"


# --- its neighbors in the tree ----------------------------------------------------------------


def test_what_followed_the_same_tokens():
    tree = Tree()
    tree.insert([1, 2, 3, 4, 5, 6, 7])
    assert tree.next([1, 2], [1, 2]) == [3, 4, 5, 6, 7]
    assert tree.next([1, 2], [1, 2, 3, 4]) == [5, 6, 7], "inside an edge"
    assert tree.next([1, 2], [1, 2, 3, 9]) == []
    assert tree.next([1, 2], [1, 2, 3, 4, 5, 6, 7]) == []
    assert tree.next([1, 2], [1, 2, 3, 4, 5, 6, 7, 8]) == []
    assert tree.next([], [1, 2]) == [3, 4, 5, 6, 7], "with nothing cached at first"


def test_where_it_branches_the_way_last_used_is_taken():
    tree = Tree()
    tree.insert([1, 2, 3, 4])
    tree.insert([1, 2, 5, 6, 7])
    assert tree.next([1, 2], [1, 2]) == [5, 6, 7]
    tree.tree.release(tree.lease([1, 2, 3, 4]))
    assert tree.next([1, 2], [1, 2]) == [3, 4]
    tree.insert([1, 2, 3, 4, 8])
    assert tree.next([1], [1]) == [2, 3, 4, 8], "through all edges"


@pytest.mark.parametrize("known", range(8, 12))
def test_a_page_that_is_begun_agrees_as_far_as_it_goes(known):
    text = list(range(20, 36))
    tree = Tree(page_size=4)
    tree.insert(text)
    tree.insert([*text[:8], 90, 91, 92, 93])
    if known == 8:
        assert tree.next(text[:4], text[:8]) == [90, 91, 92, 93]
    else:
        assert tree.next(text[:4], text[:known]) == text[known:]
        assert tree.next(text[:4], [*text[: known - 1], 99]) == []


def test_no_more_is_read_than_is_needed():
    tree = Tree()
    tree.insert(list(range(500)))
    assert tree.next([0, 1], [0, 1]) == list(range(2, 2 + MOST_READ))


def test_the_tree_comes_first_and_only_in_its_own_namespace():
    said = [1, 2, 3, 4, 5, 1, 2]
    tree = Tree()
    tree.insert([*said, 6, 7], THEIRS)
    drafter, ours = Drafter(array("i", said)), tree.lease(said[:3])
    drafter.look(ours, tree.tree.version, 1)
    assert guess(drafter, 2) == [3, 4], "from its own tokens"
    tree.insert([*said, 8, 9])
    drafter.look(ours, tree.tree.version, 1)
    assert guess(drafter) == [8, 9]
    assert drafter.odds(1) == [FIRST_RATES[-1]]


def test_a_request_that_left_all_paths_looks_again_only_when_the_tree_has_grown():
    tree = Tree()
    tree.insert([1, 2, 3, 4])
    tokens = array("i", [1, 2, 9])
    drafter, lease = Drafter(tokens), tree.lease([1, 2])
    version = tree.tree.version
    drafter.look(lease, version, 1)
    assert guess(drafter) == []
    tree.insert([1, 2, 9, 8])
    drafter.look(lease, version, 1)
    assert guess(drafter) == [], "that there is more is not known to it"
    drafter.look(lease, tree.tree.version, 1)
    assert guess(drafter) == [8]


def test_flushed_prefixes_are_not_read():
    tree = Tree()
    tree.insert([1, 2, 3, 4])
    drafter, lease = Drafter(array("i", [1, 2])), tree.lease([1, 2])
    tree.tree.flush()
    drafter.look(lease, tree.tree.version, 1)
    assert guess(drafter) == []
