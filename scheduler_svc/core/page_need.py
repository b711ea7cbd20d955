"""Pages that one request lacks for a length foreseen.  Foresees nothing itself.

A request needs slots for the tokens it has, one of which may still have to be computed, and for
all it will sample but the last.  A preheat needs the whole pages of its prompt, and one whose
prompt is scored and no more needs all of it but the last token.
"""

from __future__ import annotations

from typing import Protocol

from scheduler_svc.core.request import Request

MOST_TOKENS_EXPECTED = 1024
"""Whoever names no max_tokens gets the model's limit, and will hardly use it."""

RESUME_STRETCH_TOKENS = 256
"""Half the room that a request cut back once must find, where it has more than that left."""

_MOST_DOUBLINGS = 16


class Pages(Protocol):
    """The part of the KV cache that counts."""

    @property
    def page_size(self) -> int:
        """Slots a page."""
        ...

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        ...

    def num_pages_held_alone(self, request: Request) -> int:
        """Pages that can be had once this request, and no other, is gone."""
        ...


def missing_pages(request: Request, growth: int, kv: Pages) -> int:
    """Pages beyond those held for the tokens a request has and `growth` tokens more, whole pages.

    A growth of 0 is what it needs at once; who starts alone needs no more.  One that has sampled
    its last token, or is about to have, needs nothing more, whatever `growth` says.
    """
    if request.submission.preheat:
        needed = request.num_prompt // kv.page_size
    elif not request.generates:
        needed = kv.num_pages(request.num_prompt - 1)
    elif request.num_left < 1:
        return 0
    else:
        needed = kv.num_pages(request.num_tokens + growth)
    return max(0, needed - len(request.pages))


def resume_need_tokens(request: Request) -> int:
    """Tokens beyond those it has that a request that was cut back must find room for."""
    stretch = RESUME_STRETCH_TOKENS << min(request.num_retractions, _MOST_DOUBLINGS)
    return max(0, min(request.num_left - 1, stretch))
