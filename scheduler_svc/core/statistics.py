"""Numbers about the whole core, formed on demand.  Changes nothing, counts nothing itself."""

from __future__ import annotations

from array import array
from itertools import islice

from scheduler_svc.core.histogram import Histogram
from scheduler_svc.core.messages import SlotBooks, TreeNodeView
from scheduler_svc.core.page_lives import PageLives
from scheduler_svc.core.radix_node import RadixNode
from scheduler_svc.core.radix_tree import RadixTree
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.tenant_ledger import TenantCounts
from scheduler_svc.core.views import EconomyView, HistogramView, TenantView

_GIB = 1 << 30
MOST_SUMMED = 20_000
"""Nodes looked at for a dump, as streams wait meanwhile."""


def slot_books(state: SchedulerState) -> SlotBooks:
    """Slots by owner, now."""
    size = state.config.page_size
    holders = [*state.running.values(), *state.leaving]
    return SlotBooks(
        total=state.num_slots,
        free=state.pool.num_free * size,
        private=sum(map(state.kv.num_private_pages, holders)) * size,
        evictable=state.tree.num_evictable_pages * size,
        locked=state.tree.num_locked_pages * size,
        in_flight=state.pool.num_in_flight * size,
    )


def economy(state: SchedulerState, now_ns: int) -> EconomyView:
    """What the pool is worth; DESIGN.md defines the words."""
    counters, size = state.counters, state.config.page_size
    running = state.running.values()
    context = sum(request.num_computed for request in running)
    books = slot_books(state)
    # What pins alone keep is locked, and no request sees it.
    occupied = books.private + books.locked - _num_idle_pinned_pages(state) * size
    freed = state.num_freed_slots
    pool_bytes = state.num_slots * state.hello.kv_bytes_per_slot
    return EconomyView(
        reuse_rate=_ratio(counters.cached_tokens, counters.prompt_tokens),
        density=_ratio(context, occupied),
        tokens_per_gib=_ratio(context * _GIB, pool_bytes),
        turnover=state.books.turnover(now_ns, freed, max(1, state.num_slots)),
        recompute_tax=_ratio(counters.recomputed_tokens, counters.computed_tokens),
        volatility=state.books.volatility(),
        freed_slots=freed,
        context_tokens=context,
        pinned_slots=state.pins.num_hard_pages() * size,
    )


def histograms(lives: PageLives) -> dict[str, HistogramView]:
    """In milliseconds, by page."""
    return {
        "block_lifetime_ms": _histogram(lives.lifetimes_ms),
        "idle_before_evict_ms": _histogram(lives.idle_ms),
        "reuse_gap_ms": _histogram(lives.reuse_gaps_ms),
    }


def tenant_books(state: SchedulerState) -> dict[str, TenantView]:
    """By tenant; those beyond the bound together."""
    size, ledger = state.config.page_size, state.ledger
    running: dict[str, int] = {}
    held: dict[str, int] = {}
    for request in state.running.values():
        name = ledger.name_of(request.submission.tenant)
        running[name] = running.get(name, 0) + 1
        own = len(request.pages) - (request.cached_tokens or 0) // size
        held[name] = held.get(name, 0) + max(0, own)
    waiting: dict[str, int] = {}
    for tenant in state.waiting.waiting_tenants():
        name = ledger.name_of(tenant)
        waiting[name] = waiting.get(name, 0) + state.waiting.num_waiting_of(tenant)
    pinned = state.pins.num_hard_pages_by(ledger.name_of)
    names = dict.fromkeys([*ledger.all(), *running, *waiting, *pinned])
    return {
        name: _tenant_view(
            ledger.all().get(name) or TenantCounts(),
            running=running.get(name, 0),
            waiting=waiting.get(name, 0),
            held_slots=held.get(name, 0) * size,
            pinned_slots=pinned.get(name, 0) * size,
        )
        for name in names
    }


def dump_tree(tree: RadixTree, max_nodes: int) -> tuple[list[TreeNodeView], int]:
    """At most `max_nodes` nodes, parents first, and how many were left out.

    Hits are summed up over what lies beneath, of the first MOST_SUMMED nodes.
    """
    nodes = list(islice(tree.nodes(), max(max_nodes, MOST_SUMMED)))
    hits: dict[RadixNode, int] = {}
    for node in reversed(nodes):  # children before parents: a match counts for all of its path
        hits[node] = hits.get(node, 0) + node.hits
        if node.parent is not None:
            hits[node.parent] = hits.get(node.parent, 0) + hits[node]
    position = {node: at for at, node in enumerate(nodes[:max_nodes])}
    views = [
        TreeNodeView(
            parent=-1 if node.parent is None else position[node.parent],
            token_ids=array("i", node.key),
            locked=node.num_holds > 0,
            hits=hits[node] if node.parent is not None else 0,
            cache_domain=node.namespace.cache_domain if node.namespace else "",
            tenant=node.namespace.tenant if node.namespace else "",
        )
        for node in position
    ]
    return views, tree.num_nodes + tree.num_roots - len(views)


def _tenant_view(counts: TenantCounts, **gauges: int) -> TenantView:
    return TenantView(
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        generated_tokens=counts.generated_tokens,
        computed_tokens=counts.computed_tokens,
        recomputed_tokens=counts.recomputed_tokens,
        retractions=counts.retractions,
        **gauges,
    )


def _num_idle_pinned_pages(state: SchedulerState) -> int:
    """Pages that pins keep locked and no request does."""
    seen: dict[RadixNode, None] = {}
    for request in [*state.running.values(), *state.leaving]:
        climber = request.lease.node if request.lease else None
        while climber is not None and climber not in seen:
            seen[climber] = None
            climber = climber.parent
    used = sum(len(node.pages) for node in seen)
    return state.tree.num_locked_pages - used


def _histogram(histogram: Histogram) -> HistogramView:
    return HistogramView(
        bounds=histogram.bounds(), counts=tuple(histogram.counts), sum=histogram.total
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
