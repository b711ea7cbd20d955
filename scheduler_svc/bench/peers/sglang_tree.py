"""SGLang's `RadixCache` on the workload of the prefix tree.  Its pool is a count: only the tree is
measured."""

from __future__ import annotations

from array import array
from importlib import import_module
from typing import Any

from scheduler_svc.bench.peers.cycles import match_insert, steady_cycle
from scheduler_svc.bench.scale import LENGTH, Scale, make_sequences, num_tree_tokens
from scheduler_svc.bench.stopwatch import Stopwatch, settle

PAGE_SIZES = (1, 16)
_REPETITIONS = 3


def measure(scale: Scale) -> dict[str, Any]:
    """Its figures by page size."""
    radix_cache = import_module("sglang.srt.mem_cache.radix_cache")
    sequences = make_sequences(scale)
    num_tokens = num_tree_tokens(sequences)
    keys = [array("q", sequence) for sequence in sequences]  # as its requests hold their tokens
    settle()
    figures: dict[str, Any] = {"match_insert_us": {}, "steady_cycle_us": {}}
    for page_size in PAGE_SIZES:
        fresh = [_Tree(radix_cache, keys, page_size, num_tokens) for _ in range(_REPETITIONS)]
        figures["match_insert_us"][f"page{page_size}"] = match_insert([*fresh], scale)
        del fresh
        half = _Tree(radix_cache, keys, page_size, num_tokens // 2)
        figures["steady_cycle_us"][f"page{page_size}"] = steady_cycle(half, scale)
    return figures


class _Slots:
    """Counts free slots; handed to the tree as its allocator."""

    device = "cpu"

    def __init__(self, num_free: int) -> None:
        self.num_free = num_free

    def free_segment(self, slots: Any, **_: object) -> None:
        self.num_free += len(slots)


class _Tree:
    def __init__(self, radix_cache: Any, keys: list[array[int]], page_size: int, room: int) -> None:
        self._radix_cache = radix_cache
        self._keys = keys
        self._slots = _Slots(room)
        self._tree = radix_cache.RadixCache.create_simulated(
            mock_allocator=self._slots, page_size=page_size
        )
        self._fresh = radix_cache.torch.arange(LENGTH)
        self.num_evictions = 0

    def cycle(self, number: int, watch: Stopwatch, *, evicts: bool) -> None:
        """See Prefixes."""
        module, tree, slots = self._radix_cache, self._tree, self._slots
        watch.start()
        key = module.RadixKey(self._keys[number])
        found = tree.match_prefix(module.MatchPrefixParams(key=key))
        node, num_found = found.last_device_node, found.device_prefix_len
        tree.inc_lock_ref(node)
        cached = tree.path_device_indices(node)
        missing = LENGTH - num_found
        if evicts and missing > slots.num_free:
            self.num_evictions += 1
            tree.evict(module.EvictParams(num_tokens=missing - slots.num_free))
        watch.stop()
        slots.num_free -= missing
        watch.start()
        value = module.torch.cat([cached, self._fresh[num_found:]])
        tree.insert(module.InsertParams(key=key, value=value))
        tree.dec_lock_ref(node)
        watch.stop()
        watch.lap()
