"""How much is measured: the workload's sizes, and the same in small for tests."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

NUM_SHARED = 816
NUM_OWN = 208
LENGTH = NUM_SHARED + NUM_OWN
"""Tokens of a sequence: a prefix that its group shares, and what is its own."""

NUM_PROMPT = 200
"""Tokens of each prompt where steps are measured; no two share any."""

_VOCABULARY = 49_000
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Counts; the defaults are those whose figures are comparable."""

    num_sequences: int = 10_000
    num_groups: int = 100
    num_repetitions: int = 5
    num_running: int = 256
    num_waiting: int = 1000
    num_steps: int = 400
    """Timed steps of one repetition."""
    num_codings: int = 2000
    queue_lengths: tuple[int, ...] = (100, 1000, 10_000)
    tree_sizes: tuple[int, ...] = (1000, 100_000, 1_000_000)

    def __post_init__(self) -> None:
        """A group without a sequence would share nothing."""
        assert self.num_groups <= self.num_sequences


def scale_of(fraction: float) -> Scale:
    """The full workload for 1, a part of it for less.

    Raises:
        ValueError: not above 0 and at most 1.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"scale: {fraction} is not above 0 and at most 1")
    full = Scale()
    if fraction == 1.0:
        return full

    def part(count: int, least: int) -> int:
        return max(least, round(count * fraction))

    return Scale(
        num_sequences=part(full.num_sequences, 20),
        num_groups=part(full.num_groups, 4),
        num_repetitions=part(full.num_repetitions, 2),
        num_running=part(full.num_running, 4),
        num_waiting=part(full.num_waiting, 4),
        num_steps=part(full.num_steps, 10),
        num_codings=part(full.num_codings, 10),
        queue_lengths=tuple(part(length, 2) for length in full.queue_lengths),
        tree_sizes=tuple(part(size, 10) for size in full.tree_sizes),
    )


def make_sequences(scale: Scale) -> list[array[int]]:
    """[num_sequences][LENGTH] token ids, the same in every process."""
    rng = random.Random(_SEED)
    stems = [_tokens(rng, NUM_SHARED) for _ in range(scale.num_groups)]
    return [
        stems[rng.randrange(scale.num_groups)] + _tokens(rng, NUM_OWN)
        for _ in range(scale.num_sequences)
    ]


def make_prompts(count: int) -> list[array[int]]:
    """[count][NUM_PROMPT] token ids that share nothing, the same in every process."""
    rng = random.Random(_SEED)
    return [_tokens(rng, NUM_PROMPT) for _ in range(count)]


def num_tree_tokens(sequences: list[array[int]]) -> int:
    """Tokens a tree holds after all of them."""
    stems = {sequence[:NUM_SHARED].tobytes() for sequence in sequences}
    return len(stems) * NUM_SHARED + len(sequences) * NUM_OWN


def _tokens(rng: random.Random, count: int) -> array[int]:
    return array("i", rng.choices(range(3, _VOCABULARY), k=count))
