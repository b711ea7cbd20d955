"""Requests that ask for more than a pool can hold: the trace of `radixd bench pressure`.

A closed loop: so many clients that the requests open at once would fill the pool `DEMAND` times
over.  Lengths are drawn once from a seed and look like chat; some prompts begin with a stem that
others share.  Pure: no clock, no network.

What a request will really say is not what its client allows: it ends by itself soon after
`min_tokens`, at the first of `STOP_TOKEN_IDS`.  They are chosen for the fake worker, whose tokens
are drawn evenly from the printable bytes, so that one in six of them ends an answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

DEMAND = 2.0
"""Full lengths of all requests that are open at once / token slots."""

SHORTEST, LONGEST = 50, 600
"""Of a prompt, and of an answer, in tokens; drawn evenly."""

NUM_STEMS, STEM_TOKENS = 8, 160
"""Beginnings that prompts share, as system prompts do, and how long they are."""

SHARE_WITH_STEM = 0.5
SHARE_WITHOUT_LIMIT = 0.25
"""Requests that name no max_tokens; the others name 1 to `MOST_GENEROUS` times what they say."""
MOST_GENEROUS = 4.0

FIRST_ID, LAST_ID = 32, 126
"""Prompts are made of these ids, which any vocabulary has."""

STOP_TOKEN_IDS = tuple(range(FIRST_ID, LAST_ID, 6))
"""Sixteen ids, as many as a request may name."""

MEAN_OVERRUN = 6
"""Tokens from `min_tokens` to the end, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureRequest:
    """One request; greedy, ends at `STOP_TOKEN_IDS`, not at end-of-sequence."""

    prompt_ids: tuple[int, ...]
    min_tokens: int
    max_tokens: int | None
    """None: the client names no limit."""


def trace(seed: int) -> Iterator[PressureRequest]:
    """The requests of a seed, in the order in which clients take them; they do not end."""
    rng = random.Random(seed)
    stems = [_ids(rng, STEM_TOKENS) for _ in range(NUM_STEMS)]
    while True:
        yield _draw(rng, stems)


def num_clients(num_slots: int) -> int:
    """Requests open at once that would fill `DEMAND` times so many slots, if all were complete."""
    mean_length = (SHORTEST + LONGEST) / 2
    return max(2, round(DEMAND * num_slots / (2 * mean_length)))


def _draw(rng: random.Random, stems: list[tuple[int, ...]]) -> PressureRequest:
    num_prompt, num_output = rng.randint(SHORTEST, LONGEST), rng.randint(SHORTEST, LONGEST)
    stem = rng.choice(stems) if rng.random() < SHARE_WITH_STEM else ()
    own = _ids(rng, LONGEST)
    generosity = rng.uniform(1.0, MOST_GENEROUS)
    is_unlimited = rng.random() < SHARE_WITHOUT_LIMIT
    return PressureRequest(
        prompt_ids=(stem + own)[:num_prompt],
        min_tokens=num_output - MEAN_OVERRUN,
        max_tokens=None if is_unlimited else round(num_output * generosity),
    )


def _ids(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(FIRST_ID, LAST_ID + 1), k=num_tokens))
