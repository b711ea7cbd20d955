"""What a plan says of stems, against the slots of its rows, token by token."""

from itertools import pairwise

from protos.plan import STEM_FIELDS


def stems_of(plan):
    """(first entry, number of entries, begin, end) of each."""
    columns = [plan.stems[at::STEM_FIELDS] for at in range(STEM_FIELDS)]
    return list(zip(*columns, strict=True))


def check(engine, plan):
    """Raises AssertionError where a stem of a plan that was just executed is none."""
    covered = [0] * len(plan.rows)
    for first, count, begin, end in stems_of(plan):
        entries = range(first, first + count)
        assert [plan.extend_lens[entry] for entry in entries] == [1] * count
        assert [covered[entry] for entry in entries] == [begin] * count
        assert all(end <= plan.prefix_lens[entry] for entry in entries)
        shared = [engine.row_slots(plan.rows[entry])[begin:end] for entry in entries]
        assert all(len(slots) == end - begin and slots == shared[0] for slots in shared)
        covered[first : first + count] = [end] * count


def check_complete(core, plan):
    """Raises AssertionError where a plan leaves a stem out that it should tell, or any at all to a
    worker that did not ask."""
    flight, streams = core.state.in_flight[-1], list(core.state.decoding.values())
    least, computed = core.state.hello.least_stem_tokens, [r.row for r in flight.decodes]
    if not least:
        assert not plan.stems
        assert list(plan.rows[: len(computed)]) == computed
        return
    if [r for r in streams if r in flight.decodes] != flight.decodes:
        # Somebody was cut back after the plan had listed its streams, and may be back already.
        assert core.counters()["retractions"]
        return
    unanswered = [row.request for plan in core.state.in_flight for row in plan.rows]
    placed = [request for request in streams if request not in unanswered]
    size = core.config.page_size
    slots = {r: core.state.kv.slots(r, 0, r.lease.num_pages * size).tolist() for r in placed}
    placed.sort(key=slots.get)
    wanted = []
    for first, count, begin, end in nested(list(map(slots.get, placed)), least):
        rows = [r.row for r in placed[first : first + count] if r.row in computed]
        if len(rows) > 1:
            wanted.append((sorted(rows), begin, end))
    assert told(plan) == sorted(wanted)
    rows = list(plan.rows[: len(computed)])
    assert sorted(rows) == sorted(computed) if wanted else rows == computed


def told(plan):
    """Stems of a plan, as (rows, begin, end)."""
    return sorted(
        (sorted(plan.rows[first : first + count]), begin, end)
        for first, count, begin, end in stems_of(plan)
    )


def nested(rows, least):
    """The stems among neighbouring rows of slots, by what a stem is."""
    found, runs = [], [(0, len(rows), 0)]
    while runs:
        first, stop, begin = runs.pop()
        run = [rows[first]] if first < stop else []
        for at in range(first + 1, stop + 1):
            if at < stop and num_common(rows[at - 1], rows[at]) >= begin + least:
                run.append(rows[at])
                continue
            if len(run) > 1:
                end = min(num_common(one, other) for one, other in pairwise(run))
                found.append((at - len(run), len(run), begin, end))
                runs.append((at - len(run), at, end))
            run = [rows[at]] if at < stop else []
    return found


def num_common(one, other):
    """Slots that both begin with."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)
