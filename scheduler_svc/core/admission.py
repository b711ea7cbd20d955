"""Whether a waiting request may start now: how many pages are spoken for.  Takes none.

An estimate says how many pages, beyond those now held, everything that runs is expected to need
at the worst moment; the planner compares that with the pages that can be had.  A request needs
slots for all its tokens but the one sampled last, in whole pages of its own (field case 32).
When an estimate proves too low, retraction makes room.

A request that was cut back must find room for its whole need, so that it is not cut back again
at once; where that is far off, for a stretch that doubles with each time, so that its returns
stay few and nobody waits for room it never uses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from scheduler_svc.core.finish_order import PeakPromise
from scheduler_svc.core.output_lengths import OutputLengths
from scheduler_svc.core.page_need import (
    MOST_TOKENS_EXPECTED,
    Pages,
    missing_pages,
    resume_need_tokens,
)
from scheduler_svc.core.request import Request

RATIO_MOST = 0.7
"""Of `ratio`: so far retractions raise it, unless `decode_reserve` is above."""

RATIO_JUMP = 0.1
"""Of `ratio`: what a retraction adds."""

RATIO_DECAY = 0.001
"""Of `ratio`: what a step takes away; a jump is forgotten after a hundred steps."""

SETTLE_STEPS = 16
"""Of `ratio`: retractions so soon after one that raised it are of the same storm, which admission
can no longer prevent."""

_ONE = 1 << 16
"""Ratios are whole numbers of 1/65536: products without floats, the same everywhere."""


class Promise(Protocol):
    """What running requests are expected to need, kept up while others are admitted."""

    def pages_ahead(self, candidate: Request | None) -> int:
        """Pages beyond those now held that everything that runs is expected to need at the worst
        moment, and the candidate with it, whose cached prefix is attached."""
        ...

    def add(self, request: Request) -> None:
        """It was admitted and got its pages for this step: it counts from now on."""
        ...


class EstimateKnobs(NamedTuple):
    """What an operator may set."""

    decode_reserve: float
    """0..1; share of the tokens still to come that `ratio` counts at least."""
    length_quantile: float
    """Above 0, at most 1; share of requests whose length `quantile` covers."""


class AdmissionEstimate(Protocol):
    """One way to foresee the need, and what it has learned so far."""

    def __init__(self, knobs: EstimateKnobs) -> None: ...

    def tune(self, knobs: EstimateKnobs) -> None:
        """Other knobs from now on; what was learned stays."""
        ...

    def open(self, running: Iterable[Request], kv: Pages) -> Promise:
        """Adds up what runs: once a step, when somebody may be admitted."""
        ...

    def note_step(self, num_steps: int = 1) -> None:
        """So many steps were planned."""
        ...

    def note_retraction(self) -> None:
        """A request was cut back for want of room."""
        ...

    def note_finished(self, num_outputs: int, max_tokens: int) -> None:
        """A request ended with so many output tokens.

        One that was cancelled or cut by its deadline says `max_tokens=num_outputs`: it would have
        become longer.
        """
        ...


class WorstCase:
    """Every request is taken to run to its max_tokens, so with it no request is ever cut back.
    Admits fewest at a time: suits pools where a stream may never pause, and clients that send a
    max_tokens close to what they use; without one the model's whole length is set aside."""

    def __init__(self, knobs: EstimateKnobs) -> None:
        self.tune(knobs)

    def tune(self, knobs: EstimateKnobs) -> None:
        """Depends on nothing."""

    def open(self, running: Iterable[Request], kv: Pages) -> Promise:
        """See AdmissionEstimate."""
        size, total = kv.page_size, 0
        round_up = size - 2  # the token sampled last needs no slot
        for request in running:
            if request.submission.preheat:
                total += missing_pages(request, 0, kv)
                continue
            missing = (request.end_tokens + round_up) // size - len(request.pages)
            if missing > 0:
                total += missing
        return _SumPromise(total, _room, kv)

    def note_step(self, num_steps: int = 1) -> None:
        """Learns nothing."""

    def note_retraction(self) -> None:
        """Learns nothing."""

    def note_finished(self, num_outputs: int, max_tokens: int) -> None:
        """Learns nothing."""


class Ratio:
    """Every request is taken to generate a share of the tokens it has left, of at most 1024.  The
    share is `decode_reserve`; when requests are cut back it rises, at most to 0.7, and sinks back
    step by step while none are.  The default: suits mixed chats, where nobody knows how long an
    answer gets and max_tokens, if sent at all, says little."""

    # The decaying new-token ratio is SGLang's; it starts high and sinks once.  Here it starts at
    # the floor, because a pool at rest has nothing to fear, and is a loop: a retraction raises it.

    def __init__(self, knobs: EstimateKnobs) -> None:
        self._floor = self._most = self._ratio = 0
        self._steps_since_jump = SETTLE_STEPS
        self.tune(knobs)

    @property
    def ratio(self) -> float:
        """The share that is counted now."""
        return self._ratio / _ONE

    def tune(self, knobs: EstimateKnobs) -> None:
        """A new floor; what retractions added above the old one stays."""
        added = self._ratio - self._floor
        self._floor = _fixed(knobs.decode_reserve)
        self._most = max(self._floor, _fixed(RATIO_MOST))
        self._ratio = min(self._floor + added, self._most)

    def open(self, running: Iterable[Request], kv: Pages) -> Promise:
        """See AdmissionEstimate."""
        size, ratio, most, total = kv.page_size, self._ratio, MOST_TOKENS_EXPECTED, 0
        round_up = size - 1
        for request in running:
            num_tokens = len(request.tokens) + request.num_pending
            room = request.end_tokens - num_tokens - 1
            if room < 0:
                total += missing_pages(request, 0, kv)
                continue
            growth = (room if room < most else most) * ratio >> 16
            missing = (num_tokens + growth + round_up) // size - len(request.pages)
            if missing > 0:
                total += missing
        return _SumPromise(total, self._growth, kv)

    def _growth(self, request: Request) -> int:
        return max(0, min(_room(request), MOST_TOKENS_EXPECTED)) * self._ratio >> 16

    def note_step(self, num_steps: int = 1) -> None:
        """Sinks towards the floor."""
        self._steps_since_jump += num_steps
        self._ratio = max(self._floor, self._ratio - num_steps * _fixed(RATIO_DECAY))

    def note_retraction(self) -> None:
        """Rises, once a storm."""
        if self._steps_since_jump >= SETTLE_STEPS:
            self._ratio = min(self._ratio + _fixed(RATIO_JUMP), self._most)
            self._steps_since_jump = 0

    def note_finished(self, num_outputs: int, max_tokens: int) -> None:
        """Learns nothing."""


class Peak:
    """Every request is taken to run to its max_tokens (or 1024 tokens further, if that is less),
    but not all at once: what ends first gives back its pages while the others still grow, and the
    highest sum over all these moments counts.  Admits more than `worst_case` and hardly ever cuts
    back: suits batches and benchmarks, whose requests do run to their max_tokens."""

    def __init__(self, knobs: EstimateKnobs) -> None:
        self.tune(knobs)

    def tune(self, knobs: EstimateKnobs) -> None:
        """Depends on nothing."""

    def open(self, running: Iterable[Request], kv: Pages) -> Promise:
        """See AdmissionEstimate."""
        return PeakPromise(running, kv)

    def note_step(self, num_steps: int = 1) -> None:
        """Learns nothing."""

    def note_retraction(self) -> None:
        """Learns nothing."""

    def note_finished(self, num_outputs: int, max_tokens: int) -> None:
        """Learns nothing."""


class Quantile:
    """Every request is taken to become as long as `length_quantile` of the last 512 that ended and
    had generated as much as it has; before 32 have ended, a share `decode_reserve` of what it has
    left.  Suits steady traffic whose answers are alike and far shorter than max_tokens; a sudden
    change of traffic takes some hundred answers to be noticed."""

    def __init__(self, knobs: EstimateKnobs) -> None:
        self._lengths = OutputLengths(knobs.length_quantile)
        self._unlearned = Ratio(knobs)

    def tune(self, knobs: EstimateKnobs) -> None:
        """See AdmissionEstimate."""
        self._unlearned.tune(knobs)
        self._lengths.tune(knobs.length_quantile)

    def open(self, running: Iterable[Request], kv: Pages) -> Promise:
        """See AdmissionEstimate."""
        if not self._lengths.is_known:
            return self._unlearned.open(running, kv)
        size, most, total = kv.page_size, MOST_TOKENS_EXPECTED, 0
        ends, expected = self._lengths.ends, self._lengths.expected
        round_up = size - 1
        for request in running:
            num_tokens = len(request.tokens) + request.num_pending
            room = request.end_tokens - num_tokens - 1
            if room < 0:
                total += missing_pages(request, 0, kv)
                continue
            num_generated = request.submission.max_tokens - room - 1
            length = expected[bisect_right(ends, num_generated)]
            growth = length - num_generated - 1 if length else most
            slots = num_tokens + (growth if growth < room else room)
            missing = (slots + round_up) // size - len(request.pages)
            if missing > 0:
                total += missing
        return _SumPromise(total, self._growth, kv)

    def _growth(self, request: Request) -> int:
        """Slots beyond those of the tokens there are, for the length learned."""
        room = max(0, _room(request))
        num_generated = request.submission.max_tokens - room - 1
        length = self._lengths.expected[bisect_right(self._lengths.ends, num_generated)]
        return min(room, length - num_generated - 1 if length else MOST_TOKENS_EXPECTED)

    def note_step(self, num_steps: int = 1) -> None:
        """Learns nothing."""

    def note_retraction(self) -> None:
        """Learns nothing."""

    def note_finished(self, num_outputs: int, max_tokens: int) -> None:
        """Learns a length, or that it is at least so long."""
        self._lengths.note(num_outputs, is_cut=num_outputs >= max_tokens)


ADMISSION_ESTIMATES: dict[str, type[AdmissionEstimate]] = {
    "worst_case": WorstCase,
    "ratio": Ratio,
    "peak": Peak,
    "quantile": Quantile,
}


class _SumPromise:
    """Needs of requests that are foreseen one by one: they add up."""

    def __init__(self, total: int, growth_of: Callable[[Request], int], kv: Pages) -> None:
        self._total = total
        self._growth_of = growth_of
        self._kv = kv

    def pages_ahead(self, candidate: Request | None) -> int:
        """See Promise."""
        if candidate is None:
            return self._total
        growth = self._growth_of(candidate)
        if candidate.is_resuming:
            growth = max(growth, resume_need_tokens(candidate))
        return self._total + missing_pages(candidate, growth, self._kv)

    def add(self, request: Request) -> None:
        """See Promise."""
        self._total += missing_pages(request, self._growth_of(request), self._kv)


def _room(request: Request) -> int:
    """Tokens it may still sample that will need a slot."""
    return request.num_left - 1


def _fixed(share: float) -> int:
    """In 1/65536, rounded up, so that a share of a whole number is not one below it."""
    return -int(-share * _ONE // 1)
