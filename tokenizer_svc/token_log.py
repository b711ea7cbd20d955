"""The tokens of one output and, where asked for, their log probabilities: always as many.

Both grow by one call and are cut by one range, through however many schedulers and messages they
come; no list of them is kept anywhere else.  Knows no text.
"""

import math
from array import array
from collections.abc import Iterator, Sequence

from protos.errors import WireError
from protos.plan import LogprobColumns
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.wire import check_logprobs, unpack_floats, unpack_ids

Row = tuple[int, float, list[tuple[int, float]]]
"""Of a token: its id, its log probability, and the likeliest in its place with theirs."""

LEAST_LOGPROB = -9999.0
"""What clients of OpenAI's interface take for "never"."""


class TokenLog:
    """Grows with the news of the scheduler."""

    __slots__ = ("_logprobs", "_num_top", "token_ids")

    def __init__(self) -> None:
        self.token_ids: array[int] = array("I")
        self._logprobs: LogprobColumns | None = None
        self._num_top = 0
        """Alternatives of each token."""

    def extend(self, token_ids: "array[int]", logprobs: LogprobColumns | None) -> None:
        """Adds tokens, at least one; either all that ever come have log probabilities or none."""
        assert self.token_ids.typecode == token_ids.typecode
        assert not self.token_ids or (logprobs is None) == (self._logprobs is None)
        self.token_ids.extend(token_ids)
        if logprobs is None:
            return
        if self._logprobs is None:
            self._num_top = len(logprobs.top_ids) // len(token_ids)
            self._logprobs = LogprobColumns(
                chosen=array("f"), top_ids=array("i"), top_logprobs=array("f")
            )
        self._logprobs.chosen.extend(logprobs.chosen)
        self._logprobs.top_ids.extend(logprobs.top_ids)
        self._logprobs.top_logprobs.extend(logprobs.top_logprobs)

    def logprobs(self, start: int, end: int) -> LogprobColumns | None:
        """Those of tokens [start, end); None where they were not asked for."""
        columns, k = self._logprobs, self._num_top
        if columns is None:
            return None
        return LogprobColumns(
            chosen=columns.chosen[start:end],
            top_ids=columns.top_ids[start * k : end * k],
            top_logprobs=columns.top_logprobs[start * k : end * k],
        )


def rows(ids: Sequence[int], columns: LogprobColumns | None) -> Iterator[Row]:
    """One for each token, where they have log probabilities."""
    if columns is None or not ids:
        return
    num_top = len(columns.top_ids) // len(ids)
    for at, (token_id, logprob) in enumerate(zip(ids, columns.chosen, strict=True)):
        top = slice(at * num_top, at * num_top + num_top)
        likeliest = zip(columns.top_ids[top], columns.top_logprobs[top], strict=True)
        yield token_id, logprob, list(likeliest)


def read_logprobs(
    columns: pb.LogprobColumns, *, num_tokens: int, num_top: int, vocab_size: int
) -> LogprobColumns:
    """The log probabilities that came with this many tokens, `num_top` alternatives each.

    What no token could have (logits that are no numbers) is LEAST_LOGPROB here: texts of numbers
    know no infinity.

    Raises:
        WireError: they cannot be those.
    """
    read = LogprobColumns(
        chosen=_finite(unpack_floats(columns.chosen)),
        top_ids=unpack_ids(columns.top_ids),
        top_logprobs=_finite(unpack_floats(columns.top_logprobs)),
    )
    check_logprobs(read)
    if len(read.chosen) != num_tokens or len(read.top_ids) != num_tokens * num_top:
        raise WireError(f"{len(read.chosen)} log probabilities for {num_tokens} tokens")
    if max(read.top_ids, default=0) >= vocab_size:
        raise WireError("an alternative is outside the vocabulary")
    return read


def _finite(logprobs: "array[float]") -> "array[float]":
    if -math.inf not in logprobs:
        return logprobs
    return array("f", [max(value, LEAST_LOGPROB) for value in logprobs])
