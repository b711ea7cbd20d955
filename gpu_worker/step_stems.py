"""What a plan says of stems, checked against its rows and their slots.  Not here: which pay."""

import numpy as np

from gpu_worker.engine import PlanError
from gpu_worker.step import NO_STEMS, IntArray
from protos.plan import STEM_FIELDS, BatchPlan


def check_stems(plan: BatchPlan, slots: IntArray) -> IntArray:
    """int32 [stems, STEM_FIELDS] first entry, number of entries, begin and end; see BatchPlan.

    Of a stem's slots only the last is compared.  In a pool as the scheduler fills it a slot lies at
    the end of one path, so rows that share one share what is before it, and a stem told of other
    rows, or too long, shows; comparing all of them would read as much memory as the step may take
    (256 rows of 32 000 positions: 32 MB).

    slots: [max_rows, max_length] slots of rows before the plan.

    Raises:
        PlanError: entries or positions that cannot be, stems that overlap otherwise than one within
            the other, end to begin, or a last slot that differs.
    """
    if not plan.stems:
        return NO_STEMS
    if len(plan.stems) % STEM_FIELDS:
        raise PlanError("stems are not whole")
    stems = np.array(plan.stems, np.int32).reshape(-1, STEM_FIELDS)
    covered = np.array(_covered(stems, len(plan.rows)), np.int32)
    if (covered > np.asarray(plan.prefix_lens)).any():
        raise PlanError("a stem is longer than what is computed of its rows")
    if (np.asarray(plan.extend_lens)[covered > 0] != 1).any():
        raise PlanError("a stem of a row that computes more than one token")
    _check_last_slots(plan, stems, slots)
    return stems


def _covered(stems: IntArray, num_entries: int) -> list[int]:
    """How much of each entry is in stems."""
    covered = [0] * num_entries
    for first, count, begin, end in stems.tolist():
        stop = first + count
        if first < 0 or count < 2 or stop > num_entries or begin >= end:
            raise PlanError(f"stem of {count} entries from {first}, positions {begin} to {end}")
        if covered[first:stop] != [begin] * count:
            raise PlanError(
                f"stem of entries {first} to {stop - 1} does not begin where others end"
            )
        covered[first:stop] = [end] * count
    return covered


def _check_last_slots(plan: BatchPlan, stems: IntArray, slots: IntArray) -> None:
    counts = stems[:, 1]
    of_stem = np.repeat(np.arange(len(stems)), counts)
    first = np.cumsum(counts) - counts  # of each stem, among all their entries
    entry = stems[of_stem, 0] + np.arange(len(of_stem)) - first[of_stem]
    rows, position = np.asarray(plan.rows)[entry], stems[of_stem, 3] - 1
    last = slots[rows, position]
    moved = [(new.row, 0, new.prefix_slots) for new in plan.new_rows]
    moved += [(remap.row, remap.start, remap.slots) for remap in plan.remaps]
    for row, start, others in moved:
        is_here = (rows == row) & (position >= start) & (position < start + len(others))
        if is_here.any():
            last[is_here] = np.asarray(others, np.int32)[position[is_here] - start]
    differs = last != last[first][of_stem]
    if differs.any():
        at = int(np.flatnonzero(differs)[0])
        raise PlanError(f"row {rows[at]} has another slot at {position[at]} than its stem")
