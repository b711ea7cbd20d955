"""What the prefix tree costs in time and memory, on the workload of the peers."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from sys import getsizeof

from scheduler_svc.bench.scale import LENGTH, Scale, num_tree_tokens
from scheduler_svc.bench.stopwatch import Stopwatch, figures_us
from scheduler_svc.core.eviction import EVICTION_POLICIES
from scheduler_svc.core.page_pool import PagePool
from scheduler_svc.core.radix_node import Namespace, PrefixKey
from scheduler_svc.core.radix_tree import RadixTree

PAGE_SIZES = (1, 16)

_NAMESPACE = Namespace("tenant", "domain", "", "weights", "float32")


def match_insert(sequences: list[array[int]], page_size: int, scale: Scale) -> dict[str, float]:
    """µs to find and lock a sequence's prefix, read its pages, put the rest into the tree and
    release both, into a tree that grows from nothing.  Taking free pages is not timed."""
    watches = []
    for _ in range(scale.num_repetitions):
        tree, pool = _tree(num_tree_tokens(sequences), page_size)
        watches.append(watch := Stopwatch())
        for sequence in sequences:
            watch.start()
            key = PrefixKey.of(_NAMESPACE, sequence, LENGTH, page_size)
            lease = tree.acquire(key)
            pages = tree.path_pages(lease)
            watch.stop()
            pages.extend(pool.take(LENGTH // page_size - len(pages)))
            watch.start()
            inserted = tree.insert(key, pages, below=lease)
            tree.release(lease)
            tree.release(inserted.lease)
            watch.stop()
            watch.lap()
    return figures_us(watches)


def steady_cycle(sequences: list[array[int]], page_size: int, scale: Scale) -> dict[str, float]:
    """µs to match, evict what is missing, take pages and insert, in a pool for half the tokens."""
    tree, pool = _tree(num_tree_tokens(sequences) // 2, page_size)
    watches = [_cycle(tree, pool, sequences, page_size) for _ in range(scale.num_repetitions + 1)]
    return figures_us(watches[1:])  # the first fills the pool


def _cycle(
    tree: RadixTree, pool: PagePool, sequences: list[array[int]], page_size: int
) -> Stopwatch:
    watch = Stopwatch()
    for sequence in sequences:
        watch.start()
        key = PrefixKey.of(_NAMESPACE, sequence, LENGTH, page_size)
        lease = tree.acquire(key)
        pages = tree.path_pages(lease)
        num_missing = LENGTH // page_size - len(pages)
        if num_missing > pool.num_free:
            tree.evict(num_missing - pool.num_free)
        pages.extend(pool.take(num_missing))
        inserted = tree.insert(key, pages, below=lease)
        tree.release(lease)
        tree.release(inserted.lease)
        watch.stop()
        watch.lap()
    return watch


def memory(sequences: list[array[int]], page_size: int) -> dict[str, float]:
    """Bytes a cached token (of its id and its page) and a node (of everything else).

    Measured as what comes free with the tree; the pool's own books are not the tree's.
    """
    gc.collect()
    tracemalloc.start()
    tree, pool = _tree(num_tree_tokens(sequences), page_size)
    for sequence in sequences:
        key = PrefixKey.of(_NAMESPACE, sequence, LENGTH, page_size)
        lease = tree.acquire(key)
        pages = tree.path_pages(lease)
        pages.extend(pool.take(LENGTH // page_size - len(pages)))
        inserted = tree.insert(key, pages, below=lease)
        tree.release(lease)
        tree.release(inserted.lease)
    del key, lease, pages, inserted
    columns, num_tokens = _columns_bytes(tree)
    num_nodes = tree.num_nodes
    gc.collect()
    with_tree = tracemalloc.get_traced_memory()[0]
    del tree
    gc.collect()
    tree_bytes = with_tree - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "node_bytes": round((tree_bytes - columns) / num_nodes, 1),
        "token_bytes": round(columns / num_tokens, 2),
        "num_nodes": num_nodes,
        "num_tokens": num_tokens,
        "tree_bytes": tree_bytes,
    }


def _columns_bytes(tree: RadixTree) -> tuple[int, int]:
    """Bytes of all keys and pages without their objects' heads, and the tokens they are of."""
    empty_key, empty_pages = getsizeof(b""), getsizeof(array("i"))
    total = num_tokens = 0
    for node in tree.nodes():
        total += getsizeof(node.key) - empty_key + getsizeof(node.pages) - empty_pages
        num_tokens += len(node.key) // 4
    return total, num_tokens


def _tree(num_tokens: int, page_size: int) -> tuple[RadixTree, PagePool]:
    pool = PagePool(num_tokens // page_size)
    return RadixTree(pool, page_size, EVICTION_POLICIES["lru"]), pool
