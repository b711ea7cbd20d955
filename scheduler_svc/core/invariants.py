"""The books balance, as sets and not only as counts.  Run after every step in tests.

Collects every violation and raises once, so that one look shows the whole damage.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from scheduler_svc.core.page_pool import Owner
from scheduler_svc.core.radix_node import TOKEN_BYTES, RadixNode
from scheduler_svc.core.request import Request, State
from scheduler_svc.core.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Raises AssertionError naming every broken invariant."""
    broken: list[str] = []
    holders = [*scheduler.state.running.values(), *scheduler.state.leaving]
    nodes = _all_nodes(scheduler, holders)
    _check_partition(scheduler, holders, nodes, broken)
    _check_tree(scheduler, holders, nodes, broken)
    _check_rows(scheduler, holders, broken)
    _check_requests(scheduler, broken)
    _check_marks(scheduler, nodes, broken)
    books = scheduler.slot_books()
    parts = books.free + books.private + books.evictable + books.locked + books.in_flight
    if parts != books.total:
        broken.append(f"books do not balance: {books}")
    assert not broken, "\n".join(broken)


def check_idle(scheduler: Scheduler) -> None:
    """`check`, and: nothing is held when nobody lives."""
    check(scheduler)
    state, books = scheduler.state, scheduler.slot_books()
    assert not state.live, list(state.live)
    assert not len(state.waiting)
    assert not state.leaving
    assert not state.in_flight
    pinned = state.pins.num_hard_pages() * state.config.page_size
    assert books.free + books.evictable + pinned == books.total, books
    assert len(state.free_rows) == state.num_rows


def _all_nodes(scheduler: Scheduler, holders: list[Request]) -> list[RadixNode]:
    """Nodes that can be matched, and flushed ones that a lease still holds."""
    nodes = dict.fromkeys(scheduler.state.tree.nodes())
    held = [request.lease for request in holders]
    held += [pin.lease for pin in scheduler.state.pins]
    for lease in held:
        node = lease.node if lease else None
        while node is not None:
            nodes[node] = None
            node = node.parent
    return list(nodes)


def _check_partition(
    scheduler: Scheduler, holders: list[Request], nodes: list[RadixNode], broken: list[str]
) -> None:
    pool = scheduler.state.pool
    claims: dict[Owner, list[int]] = {
        Owner.FREE: pool.free_pages(),
        Owner.PRIVATE: [
            page
            for request in holders
            if request.lease is not None
            for page in request.pages[request.lease.num_pages :]
        ],
        Owner.TREE: [page for node in nodes for page in node.pages],
        Owner.IN_FLIGHT: pool.in_flight_pages(),
    }
    claimed = sorted(chain.from_iterable(claims.values()))
    if claimed != list(range(1, pool.num_pages + 1)):  # which ones is asked only then
        count = Counter(claimed)
        twice = [page for page, times in count.items() if times > 1]
        if twice:
            broken.append(f"pages with two owners: {twice}")
        lost = [page for page in range(1, pool.num_pages + 1) if page not in count]
        if lost:
            broken.append(f"pages with no owner: {lost}")
    owner_of = pool.owners.__getitem__
    for owner, pages in claims.items():
        if bytes(map(owner_of, pages)) == bytes([owner]) * len(pages):
            continue
        wrong = [page for page in pages if pool.owners[page] != owner]
        broken.append(f"owner byte is not {owner.name}: {wrong}")


def _check_tree(
    scheduler: Scheduler, holders: list[Request], nodes: list[RadixNode], broken: list[str]
) -> None:
    tree, page_bytes = scheduler.state.tree, TOKEN_BYTES * scheduler.state.config.page_size
    leases = Counter(r.lease.node for r in holders if r.lease is not None)
    leases.update(pin.lease.node for pin in scheduler.state.pins if pin.lease is not None)
    locked = evictable = 0
    for node in nodes:
        wrong = []
        if node.num_leases != (receipts := leases.get(node, 0)):
            wrong.append(f"{node.num_leases} leases, {receipts} receipts")
        held = node.num_leases
        for first, child in node.children.items():
            held += child.num_holds > 0
            if child.parent is not node or child.key[:page_bytes] != first:
                wrong.append("child under the wrong page")
        if node.num_holds != held:
            wrong.append(f"{node.num_holds} holds, should be {held}")
        if len(node.key) != len(node.pages) * page_bytes:
            wrong.append("key and pages differ in length")
        if node.parent is not None and not node.pages:
            wrong.append("empty edge")
        is_leaf = node.parent is not None and not node.children and not node.num_holds
        if is_leaf and not node.queued:
            wrong.append("evictable leaf that eviction does not know")
        if node.num_holds:
            locked += len(node.pages)
        else:
            evictable += len(node.pages)
        if wrong:
            broken += [f"node {node.serial}: {text}" for text in wrong]
    if (tree.num_locked_pages, tree.num_evictable_pages) != (locked, evictable):
        broken.append(
            f"tree counts {tree.num_locked_pages} locked, {tree.num_evictable_pages} evictable; "
            f"nodes say {locked}, {evictable}"
        )


def _check_rows(scheduler: Scheduler, holders: list[Request], broken: list[str]) -> None:
    state, size = scheduler.state, scheduler.state.config.page_size
    rows = [request.row for request in holders] + state.free_rows
    above = [row for row in rows if row >= state.num_rows]  # in use when the limit was lowered
    if sorted(rows) != [*range(state.num_rows), *sorted(dict.fromkeys(above))]:
        broken.append(f"rows are lost or doubled: {rows}")
    if not dict.fromkeys(above).keys() <= {request.row for request in holders}:
        broken.append(f"rows above the limit of {state.num_rows} are given out: {rows}")
    for request in holders:
        name = request.request_id
        lease = request.lease
        path = scheduler.state.tree.path_pages(lease) if lease else None
        if lease is None or request.pages[: lease.num_pages] != path:
            broken.append(f"{name}: does not begin with the pages of its lease")
            continue
        if not request.num_acked <= request.num_computed <= len(request.pages) * size:
            broken.append(f"{name}: computed beyond its pages")
        planned = [row for plan in state.in_flight for row in plan.rows if row.request is request]
        decodes = sum(plan.decodes.count(request) for plan in state.in_flight)
        if request.num_unacked != decodes + sum(row.extend_len for row in planned):
            broken.append(f"{name}: tokens in flight miscounted")
        sampled = decodes + sum(row.num_samples for row in planned)
        if request.state is not State.LEAVING and request.num_pending != sampled:
            broken.append(f"{name}: tokens to be sampled miscounted")


def _check_requests(scheduler: Scheduler, broken: list[str]) -> None:
    state = scheduler.state
    alive = [r for r in state.leaving if r.state is State.RETRACTING]
    alive += [*state.running.values(), *state.waiting.requests()]
    broken += [
        f"{request.request_id}: decodes and owes {request.num_owed} tokens"
        for request in state.decoding.values()
        if request.num_owed != 1
    ]
    if sorted(request.request_id for request in alive) != sorted(state.live):
        broken.append("live requests are not exactly those that wait, run or are cut back")
    broken += [
        f"{request.request_id}: {request.num_acked} computed, {request.num_scored} of them scored"
        for request in alive
        if request.num_unscored and request.num_acked > request.num_scored
    ]
    broken += [
        f"{request.request_id}: more tokens than asked for"
        for request in alive
        if request.num_outputs > request.submission.max_tokens
    ]


def _check_marks(scheduler: Scheduler, nodes: list[RadixNode], broken: list[str]) -> None:
    """Whoever keeps something in the tree is known there, and nobody else is."""
    state = scheduler.state
    owners = {pin: f"pin {pin.pin_id}" for pin in state.pins}
    for session in state.sessions:
        if session.pin is not None:
            owners[session.pin] = f"session {session.name!r}"
    for request in state.waiting.requests():
        if request.kept is not None:
            owners[request.kept] = request.request_id
    broken += [
        f"{name}: the node where it ends does not know it"
        for pin, name in owners.items()
        if pin.node is not None and pin not in pin.node.pins
    ]
    broken += [  # of a victim it may: nobody counts those, and they go when it returns
        f"session {session.name!r}: its tail was flushed"
        for session in state.sessions
        if session.pin is not None and session.pin.node is not None and session.pin.node.dead
    ]
    broken += [
        f"node {node.serial}: keeps something for somebody who is gone, or ends elsewhere"
        for node in nodes
        for pin in node.pins
        if not node.dead and (pin not in owners or pin.node is not node)
    ]
