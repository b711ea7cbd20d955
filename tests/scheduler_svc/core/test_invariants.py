"""The check that every other test of the core relies on sees damage, and names it."""

import pytest

from scheduler_svc.core import invariants
from scheduler_svc.core.page_pool import Owner
from tests.scheduler_svc.core.harness import Bench


@pytest.fixture
def bench():
    """Two that run behind a common beginning, which the tree holds."""
    bench = Bench(N=64, r=4)
    bench.ask("before", [1, 2, 3, 4, 5], 3)
    for name in ("a", "b"):
        bench.submit(name, [1, 2, 3, 4, 5, 6, ord(name)], 20)
    for _ in range(4):
        bench.step()
    invariants.check(bench.core)
    return bench


def complaint(bench) -> str:
    with pytest.raises(AssertionError) as told:
        invariants.check(bench.core)
    return str(told.value)


def a_node(bench):
    """One with pages, that somebody holds."""
    return next(n for n in bench.core.state.tree.nodes() if n.pages and n.num_holds)


def test_a_page_with_two_owners_and_one_with_none(bench):
    request = bench.core.state.running["a"]
    lost, request.pages[-1] = request.pages[-1], request.pages[-2]
    said = complaint(bench)
    assert f"pages with two owners: [{request.pages[-2]}]" in said
    assert f"pages with no owner: [{lost}]" in said


def test_the_byte_of_a_page_says_another_owner(bench):
    page = bench.core.state.running["a"].pages[-1]
    bench.core.state.pool.owners[page] = Owner.TREE
    assert f"owner byte is not PRIVATE: [{page}]" in complaint(bench)


@pytest.mark.parametrize(
    ("field", "problem"),
    [("num_leases", "leases, "), ("num_holds", "holds, should be")],
)
def test_a_node_that_is_miscounted(bench, field, problem):
    node = a_node(bench)
    setattr(node, field, getattr(node, field) + 1)
    assert f"node {node.serial}: {getattr(node, field)} {problem}" in complaint(bench)


def test_a_node_whose_key_is_cut(bench):
    node = a_node(bench)
    node.key = node.key[:-1]
    assert f"node {node.serial}: key and pages differ in length" in complaint(bench)


def test_counts_of_the_tree(bench):
    bench.core.state.tree.num_locked_pages += 1
    assert "tree counts" in complaint(bench)
