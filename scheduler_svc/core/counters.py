"""Monotone counts since the start.  Counters, not gauges: a reader forms its own rates."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Requests by how they ended, tokens by how they came about."""

    submitted: int = 0
    finished: int = 0
    """Ended with STOP, LENGTH, POOL_FULL or PREHEATED."""
    rejected: int = 0
    cancelled: int = 0
    expired: int = 0
    failed: int = 0
    retractions: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    """Of requests at their first admission; preheats apart."""
    cached_tokens: int = 0
    """Of those, served from the tree."""
    generated_tokens: int = 0
    drafted_tokens: int = 0
    """Computed on a guess of what would be sampled before them."""
    accepted_tokens: int = 0
    """Of those, right ones: generated without a step of their own."""
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    """Of the computed ones, computed before and lost to retraction or to the worker."""
    preheated_tokens: int = 0
    session_hits: int = 0
    """Turns that began with all that their session kept."""
    worker_losses: int = 0
