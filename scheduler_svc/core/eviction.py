"""Ranks cached prefixes for eviction.  Sees facts of a node; frees nothing itself.

The family grows in its own file set; a policy is one function from node to rank, and the node
with the smallest rank goes first.
"""

from collections.abc import Callable

from scheduler_svc.core.radix_node import RadixNode

EvictionRank = Callable[[RadixNode], int]


def lru(node: RadixNode) -> int:
    """Least recently used first, by the tree's logical clock."""
    return node.last_used


EVICTION_POLICIES: dict[str, EvictionRank] = {"lru": lru}
