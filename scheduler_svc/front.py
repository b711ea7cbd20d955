"""One attached front: what is still to be written to it.  Bounded; knows no gRPC.

A front that reads slowly gets fewer and larger messages; one that does not read is cut.
"""

import asyncio
from collections.abc import Sequence

from protos.plan import Hello
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from scheduler_svc.core.messages import Output
from scheduler_svc.translation import outputs_to_proto, worker_state_to_proto

MAX_PENDING_OUTPUTS = 100_000
"""About a minute of a full server; more means that nobody reads."""

MAX_OUTPUTS_PER_MESSAGE = 4096

MAX_SCORE_BYTES_PER_MESSAGE = 8 << 20
"""Of log probabilities, give or take those of one output: one that scores a prompt has 40 KB of
them, and a message may be no larger than a front takes."""

MAX_PENDING_SCORE_BYTES = 256 << 20
"""Of log probabilities; more means that nobody reads."""

_ENTRY_BYTES = 4


class Front:
    """The outbox of one front.  Belongs to the event loop's thread."""

    def __init__(self, front_id: int, hello: Hello | None) -> None:
        """Begins with the news who is attached at present (None: nobody)."""
        self.front_id = front_id
        self.over = asyncio.Event()
        """Set for good once nothing more is to be written to it."""
        self.is_too_slow = False
        """Over because more waited than may wait."""
        self._outputs: list[Output] = []
        self._num_score_bytes = 0
        self._hello = hello
        self._state_is_news = True
        self._filled = asyncio.Event()
        self._filled.set()

    def tell_worker(self, hello: Hello | None) -> None:
        """The worker has changed; only the latest change is told."""
        self._hello, self._state_is_news = hello, True
        self._filled.set()

    def tell_outputs(self, outputs: Sequence[Output]) -> None:
        """News of its requests, in order."""
        if self.over.is_set():
            return
        self._outputs.extend(outputs)
        self._num_score_bytes += sum(map(_score_bytes, outputs))
        if (
            len(self._outputs) > MAX_PENDING_OUTPUTS
            or self._num_score_bytes > MAX_PENDING_SCORE_BYTES
        ):
            self._outputs.clear()
            self.is_too_slow = True
            self.over.set()
        self._filled.set()

    async def next_message(self) -> pb.AttachResponse:
        """Waits for news; takes as much of it as fits one message."""
        while True:
            await self._filled.wait()
            if self._state_is_news:
                self._state_is_news = False
                return pb.AttachResponse(worker_state=worker_state_to_proto(self._hello))
            if self._outputs:
                return outputs_to_proto(self._taken())
            self._filled.clear()

    def _taken(self) -> list[Output]:
        """The oldest news, as much as fits a message; at least one."""
        end = num_score_bytes = 0
        for output in self._outputs[:MAX_OUTPUTS_PER_MESSAGE]:
            if num_score_bytes >= MAX_SCORE_BYTES_PER_MESSAGE:
                break
            num_score_bytes += _score_bytes(output)
            end += 1
        taken = self._outputs[:end]
        del self._outputs[:end]
        self._num_score_bytes -= num_score_bytes
        return taken


def _score_bytes(output: Output) -> int:
    """Of its log probabilities; all else of an output is small."""
    if output.logprobs is None and output.prompt_logprobs is None:
        return 0
    columns = [c for c in (output.logprobs, output.prompt_logprobs) if c is not None]
    return sum(_ENTRY_BYTES * (len(c.chosen) + 2 * len(c.top_ids)) for c in columns)
