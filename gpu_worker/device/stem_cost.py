"""Which stems pay: bytes that need not be read, against bytes of partial results.

Of one layer, for `n` rows that share positions [begin, end):

    saved   (n - ceil(n / rows_of_item)) * (end - begin) * kv_bytes
            Alone, each row reads the stem; together, each item of up to `rows_of_item` rows does.
    spent   n * extra_partials * 2 * partial_bytes
            What a row computes of the stem and of the rest is written, and read to be merged.

Contexts are cut at multiples of `split` anyway, so a stem adds a part to a row only where it ends
elsewhere; and one more where the row might have been one item, which writes its result itself.
Llama 3 8B in bfloat16 (32 heads, 8 of keys, 128 wide: 4096 bytes a position, 16 512 a partial
result, 16 rows an item): two rows gain from 33 positions on, sixteen from 18.  Not counted: what it
costs to start a program; that items of one stem find its keys in the cache.  Not here: which rows
share what, which the scheduler knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_worker.device.attention_plan import Stem


@dataclass(frozen=True, slots=True, kw_only=True)
class StemCost:
    """Sizes that decide whether a stem pays; fixed for a model and its pool."""

    rows_of_item: int
    """Rows of one query token that an item over a stem takes."""
    split: int
    """See Cuts."""
    kv_bytes: int
    """Of a position of one layer: keys, values and scales of all heads."""
    partial_bytes: int
    """Of a query token's partial result and log-sum-exp of one layer, all heads."""

    def saved_bytes(self, stem: Stem) -> int:
        """What a layer moves less with a stem than without; negative: more."""
        num_readings = stem.num_rows - -(-stem.num_rows // self.rows_of_item)
        read = num_readings * (stem.end - stem.begin) * self.kv_bytes
        return read - stem.num_rows * self._extra_partials(stem) * 2 * self.partial_bytes

    def _extra_partials(self, stem: Stem) -> int:
        """Partial results that a row has more, at most."""
        if stem.begin == 0 and stem.end < self.split:
            return 2  # a row that ends within the split as well had none
        return 1 if stem.end % self.split else 0

    @property
    def least_tokens(self) -> int:
        """Shorter stems that add a partial result a row never pay; 0: none ever does."""
        if self.rows_of_item < 2:
            return 0
        saved = (self.rows_of_item - 1) * self.kv_bytes
        return 2 * self.partial_bytes * self.rows_of_item // saved + 1


def partial_bytes(num_heads: int, head_dim: int) -> int:
    """See StemCost: float32."""
    return 4 * num_heads * (head_dim + 1)


def paying(stems: Sequence[Stem], cost: StemCost) -> list[Stem]:
    """Those that pay, from the root on; the part of one that does not is left to those within it.

    stems: from the root on, each beginning where the last one around it ends, or at 0.
    """
    chosen: list[Stem] = []
    ends = [0] * max((stem.first_row + stem.num_rows for stem in stems), default=0)
    for stem in stems:
        first, last = stem.first_row, stem.first_row + stem.num_rows
        longer = stem._replace(begin=ends[first])
        if cost.saved_bytes(longer) > 0:
            chosen.append(longer)
            ends[first:last] = [stem.end] * stem.num_rows
    return chosen
