"""Ranks cached prefixes for eviction.  Sees facts of a node; frees nothing itself.

A policy is one function from a leaf to its rank; the leaf with the smallest rank goes first, page
by page from its tail.  A rank changes only when the leaf is used, and then never downward, so the
tree may keep leaves in a lazy heap and look again when one comes up.
"""

from collections.abc import Callable

from scheduler_svc.core.radix_node import RadixNode

Rank = float | tuple[float, ...]
EvictionRank = Callable[[RadixNode], Rank]

DEPTH_OF_DOUBLE_COST = 2048
"""A token behind so many others costs about twice the first to compute again: attention reads
them all, while every other product costs the same anywhere."""


def lru(node: RadixNode) -> float:
    """Least recently used first.  The safe choice where nothing is known about the traffic, and
    right for conversations, whose next turn comes soon or never.  The default.
    """
    return node.last_used


def lfu(node: RadixNode) -> tuple[float, ...]:
    """Least often matched first, among equals the least recently used.  Suits a few stems that
    serve almost everybody, asked for in bursts with long pauses; slow to forget what was once
    popular.
    """
    return (node.hits, node.last_used)


def slru(node: RadixNode) -> tuple[float, ...]:
    """Segmented: what was never matched again goes before all that was, both by recency.  Suits
    traffic in which most prompts come once, which would otherwise wash the shared stems out.
    """
    return (min(node.hits, 1), node.last_used)


def fifo(node: RadixNode) -> tuple[float, ...]:
    """Oldest first, whatever its use.  Predictable, and cheap to reason about in a benchmark; suits
    prefixes that go stale with age, such as the news of the hour.
    """
    return (node.created_ms, node.serial)


def priority(node: RadixNode) -> tuple[float, ...]:
    """Prefixes of the lowest request priority first, among equals the least recently used.  Suits
    interactive and batch traffic on one pool: the batch never evicts what the chat will need.
    """
    return (node.priority, node.last_used)


def cost(node: RadixNode) -> tuple[float, ...]:
    """Least worth a slot first: matches times the cost of computing it again, divided by its slots,
    aged by what was evicted since it was last used (GreedyDual-Size-Frequency, Cherkasova 1998).
    Suits long prompts of very different depth and popularity; keeps deep, often matched prefixes
    longest, and forgets them when they are not asked for any more.
    """
    return (node.age_base + (1 + node.hits) * _cost_a_token(node), node.last_used)


def _cost_a_token(node: RadixNode) -> float:
    """Of computing a token at the end of this node, in tokens at the start of a prompt."""
    depth = 0
    climber: RadixNode | None = node
    while climber is not None:
        depth += len(climber.key) // 4
        climber = climber.parent
    return 1.0 + depth / DEPTH_OF_DOUBLE_COST


EVICTION_POLICIES: dict[str, EvictionRank] = {
    "lru": lru,
    "lfu": lfu,
    "slru": slru,
    "fifo": fifo,
    "priority": priority,
    "cost": cost,
}
