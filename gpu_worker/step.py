"""A step: what a checked plan asks to be computed, in terms of tokens.  Knows no backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from protos.plan import STEM_FIELDS, NewRow, Remap

IntArray = np.ndarray[Any, np.dtype[np.int32]]

NO_STEMS: IntArray = np.empty((0, STEM_FIELDS), np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One row's part of a step."""

    row: int
    prefix_len: int
    """Tokens whose KV was in place before."""
    extend_len: int
    """Tokens computed now, at least 1."""
    first_token: int
    """Where its tokens begin among all tokens of the step."""
    num_samples: int
    """After how many of its last tokens it samples; all but the first of those are drafts."""
    num_logits: int
    """Of how many of its last tokens logits are wanted, to sample or to score what follows them."""
    first_logit: int
    """Where its logits begin among all logits of the step."""
    slots: IntArray
    """[prefix_len + extend_len] of all its tokens, a view of the table."""

    @property
    def length(self) -> int:
        """Tokens of the row with all drafts; also the position of the token after the last one."""
        return self.prefix_len + self.extend_len

    @property
    def num_drafts(self) -> int:
        """How many of its tokens are guesses."""
        return max(0, self.num_samples - 1)

    @property
    def logit_tokens(self) -> slice:
        """Those whose logits are wanted, among all tokens of the step."""
        end = self.first_token + self.extend_len
        return slice(end - self.num_logits, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A checked plan in terms of tokens."""

    rows: tuple[StepRow, ...]
    token_ids: IntArray
    """[num_tokens]; TOKEN_FROM_STEP_BEFORE where only the runner knows what the row sampled."""
    positions: IntArray
    """[num_tokens] each token's place in its row."""
    out_slots: IntArray
    """[num_tokens]"""
    next_ids: IntArray
    """[num_tokens] of each the token behind it whose log probability is wanted, or NOT_SCORED;
    empty where none is."""
    opened: tuple[NewRow, ...] = ()
    """Rows that are new in this step."""
    moved: tuple[Remap, ...] = ()
    """Slots of rows that changed before the step, one after the other: prefixes of new rows, and
    what went elsewhere.  What the step appends is in `out_slots`."""
    stems: IntArray = field(default_factory=lambda: NO_STEMS)
    """[stems, STEM_FIELDS] see BatchPlan; entries are places in `rows`."""

    def drafts(self, row: StepRow) -> IntArray:
        """[num_drafts] the guesses among a row's tokens."""
        end = row.first_token + row.extend_len
        return self.token_ids[end - row.num_drafts : end]


EMPTY_STEP = Step(
    rows=(),
    token_ids=np.empty(0, np.int32),
    positions=np.empty(0, np.int32),
    out_slots=np.empty(0, np.int32),
    next_ids=np.empty(0, np.int32),
)
"""Of no rows."""
