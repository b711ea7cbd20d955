"""Whether a step computes drafts, and how many for whom.  Makes no guesses and moves no pages.

Speculation trades products for steps: a draft costs what a row costs, and saves a step where it is
right.  So drafts are dealt out, the likeliest first, for as long as the tokens expected of the step
grow faster than the time it is predicted to take, and only if that beats the plain step.  A plain
step is sent while the one before is computed; a draft needs to know its row's last token, so a step
with drafts waits for the answer to the one before, and nothing is planned until it is answered.
That wait is measured and counts against it; for it, the slots of drafts are borrowed for exactly
the time in which nobody plans, so no admission and no retraction ever sees them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from scheduler_svc.core.drafts import Drafter
from scheduler_svc.core.request import Request

if TYPE_CHECKING:
    from scheduler_svc.core.state import SchedulerState

SPECULATIONS = {
    "auto": (
        "Tokens are guessed from what the request, or one with the same beginning, said before, "
        "and computed along with the next one; a guess counts only where the model says the same, "
        "so the output is what it is without. Only while few requests decode, and only where it is "
        "expected to pay. The default."
    ),
    "off": (
        "Every token is computed after the one before it, nothing is computed on a guess. Suits "
        "comparisons, and machines whose power is dearer than their time."
    ),
}

MOST_DRAFTS = 32
"""Of one row in one step: as many tokens as are read from the tree at once."""

UNKNOWN_PRICE = 0.25
"""Price of a draft, in plain steps, before anything is known of steps."""

LEAST_PRICE = 1 / 16
"""No draft is taken for free, whatever is predicted: a guess that hardly ever holds is not made."""

_NS_PER_MS = 1_000_000


def is_possible(state: SchedulerState) -> bool:
    """Whether drafts are worth a thought: few rows decode."""
    config = state.config
    return config.speculation != "off" and 0 < len(state.decoding) <= config.speculation_rows


def must_wait(state: SchedulerState) -> bool:
    """Whether nothing is planned before the plans in flight are answered: one of them has drafts,
    or the next one should."""
    if not state.in_flight:
        return False
    if state.in_flight[-1].num_drafts:
        return True
    if not is_possible(state):
        return False
    growing = [r for r in state.decoding.values() if r.num_computed < r.end_tokens - 1]
    return any(deal(state, growing))


def deal(state: SchedulerState, requests: Sequence[Request]) -> list[int]:
    """[num_requests] how many drafts each of these decoding requests gets in a step with nothing in
    flight; while something is, how many it would get if its next tokens came as guessed."""
    odds = [_odds(state, request) for request in requests]
    num_rows = len(requests)
    if not any(odds):
        return [0] * num_rows
    plain, price, wait = _prices(state, num_rows)
    # A page more each for what is computed anyway.
    room = (num_spare_pages(state) - num_rows) * state.config.page_size
    room = min(room, state.config.max_batch_tokens - num_rows)
    room = min(room, _most_in_time(state, num_rows))
    counts = _best(odds, room, plain + wait, price)
    expected = num_rows + sum(sum(chances[:n]) for chances, n in zip(odds, counts, strict=True))
    spent = plain + wait + price * sum(counts)
    without = plain + wait if state.config.pipeline_depth == 1 else plain
    return counts if expected * without > num_rows * spent else [0] * num_rows


def num_spare_pages(state: SchedulerState) -> int:
    """Pages that drafts may borrow: what others could have while more than one runs.

    Some may hold cached prefixes.  They are given back empty, and the next tokens need them: a
    warm cache leaves no other pages, and loses at most those of one step's drafts to this.
    """
    return state.kv.num_available_pages - state.headroom_pages


def note_drafts(state: SchedulerState, request: Request, num_drafts: int) -> None:
    """A row with so many drafts is planned."""
    request.num_drafted += num_drafts
    state.counters.drafted_tokens += num_drafts
    state.counters.computed_tokens += 1 + num_drafts
    state.ledger.note_drafts(request.submission.tenant, num_drafts)


def note_accepted(state: SchedulerState, request: Request, num_tokens: int) -> None:
    """So many tokens were generated because drafts were right."""
    request.num_accepted += num_tokens
    state.counters.accepted_tokens += num_tokens
    state.ledger.note_accepted(request.submission.tenant, num_tokens)


def _odds(state: SchedulerState, request: Request) -> list[float]:
    """[n] the chances that the next draft is right, the next two, and so on."""
    most = min(state.config.max_drafts, request.num_left - 1)
    if most <= 0:
        return []
    if request.drafter is None:
        request.drafter = Drafter(request.tokens)
    request.drafter.look(request.lease, state.tree.version, state.config.page_size)
    # Tokens on their way are not known: that they are as guessed comes first.
    return request.drafter.odds(most + request.num_pending)[request.num_pending :]


def _most_in_time(state: SchedulerState, num_rows: int) -> int:
    """Drafts with which a step is predicted to stay below the target for decoding."""
    most, target_ns = MOST_DRAFTS * num_rows, state.config.itl_target_ms * _NS_PER_MS
    plain_ns = state.step_time.predict_ns(num_rows, 0)
    with_most_ns = state.step_time.predict_ns(num_rows + most, 0)
    if not target_ns or plain_ns is None or with_most_ns is None or with_most_ns <= target_ns:
        return most
    if plain_ns >= target_ns:
        return 0
    return int((target_ns - plain_ns) * most / (with_most_ns - plain_ns))


def _prices(state: SchedulerState, num_rows: int) -> tuple[float, float, float]:
    """Time of a plain step of these rows, of one draft more, and lost by waiting for the answer to
    the step before; in ns, or in plain steps while nothing is known."""
    plain_ns = state.step_time.predict_ns(num_rows, 0)
    with_one_ns = state.step_time.predict_ns(num_rows + 1, 0)
    if not plain_ns or with_one_ns is None:
        return 1.0, UNKNOWN_PRICE, 0.0
    price_ns = max(with_one_ns - plain_ns, LEAST_PRICE * plain_ns)
    return plain_ns, price_ns, state.step_time.turnaround_ns


def _best(odds: Iterable[Sequence[float]], room: int, fixed: float, price: float) -> list[int]:
    """[num_rows] drafts of each row that give the most tokens for the time.

    Each row's chances fall, so the likeliest draft of all comes next, and what is expected of the
    step is concave in their number: the first that does not pay ends it.
    """
    rows = list(odds)
    counts = [0] * len(rows)
    heap = [(-chances[0], row) for row, chances in enumerate(rows) if chances]
    heapify(heap)
    expected, spent = float(len(rows)), fixed
    while heap and sum(counts) < room:
        chance, row = -heap[0][0], heap[0][1]
        if chance * spent <= expected * price:
            break
        expected, spent = expected + chance, spent + price
        counts[row] += 1
        chances = rows[row]
        follower = -chances[counts[row]] if counts[row] < len(chances) else 0.0
        heapreplace(heap, (follower, row))
    return counts
