"""The fake worker that writes down when it sampled each token, for `radixd bench front`.

`python -m gpu_worker.bench.stamped_worker OPTIONS` in place of `python -m gpu_worker OPTIONS`.  A
prompt with "stream 17;" in it is stream 17, one without is nobody's.  The stamps are a file of
records (STAMP) in the run folder: stream, number of the token from 0, time.
"""

import os
import re
import struct
import sys
import time

from gpu_worker.__main__ import main
from gpu_worker.engine import DoneStep
from gpu_worker.fake_engine import FakeEngine, FakeModel
from protos.plan import BatchPlan, Hello
from radixd.chassis.settings import Settings

STAMP = struct.Struct("<IIq")
"""Stream, number of the token, nanoseconds on the clock that all processes of a machine share."""
FILE_NAME = "token-stamps"

_NAMED_STREAM = re.compile(rb"stream (\d+);")
_NUM_BYTES = 256
"""Ids below are bytes; those above can be left out of a text."""


class StampingEngine:
    """A fake engine; stamps what a step sampled when the step is done."""

    def __init__(self, engine: FakeEngine, path: str) -> None:
        self._engine = engine
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._streams: dict[int, int | None] = {}
        """By row, for rows that have sampled; None: nobody's."""
        self._num_sampled: dict[int, int] = {}
        """By stream, which may come back in another row."""

    def hello(self) -> Hello:
        """As the engine's."""
        return self._engine.hello()

    def reset(self) -> None:
        """As the engine's."""
        self._streams.clear()
        self._engine.reset()

    def begin(self, plan: BatchPlan) -> DoneStep:
        """As the engine's."""
        for row in plan.freed_rows:
            self._streams.pop(row, None)
        result = self._engine.execute(plan)
        sampling = [row for row, n in zip(plan.rows, plan.samples, strict=True) if n]
        counts = result.num_sampled or bytes([1]) * len(sampling)
        now_ns, stamps = time.monotonic_ns(), []
        for row, count in zip(sampling, counts, strict=True):
            stream = self._stream(row)
            if stream is not None:
                first = self._num_sampled.get(stream, 0)
                self._num_sampled[stream] = first + count
                stamps += [STAMP.pack(stream, first + i, now_ns) for i in range(count)]
        os.write(self._file, b"".join(stamps))
        return DoneStep(result)

    def _stream(self, row: int) -> int | None:
        if row not in self._streams:
            ids, _ = self._engine.read(self._engine.row_slots(row))
            found = _NAMED_STREAM.search(bytes(each for each in ids if 0 <= each < _NUM_BYTES))
            self._streams[row] = int(found[1]) if found else None
        return self._streams[row]


def stamping_engine(settings: Settings) -> StampingEngine:
    """The engine that `--fake-worker` asks for, with stamps in the run folder."""
    assert settings.run_dir is not None
    engine = FakeEngine(
        FakeModel(),
        num_slots=settings.cpu_kv_slots,
        max_rows=settings.max_running,
        max_length=settings.max_length or settings.cpu_kv_slots,
        step_delay_s=settings.fake_step_ms / 1000,
    )
    return StampingEngine(engine, os.path.join(settings.run_dir, FILE_NAME))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], build=stamping_engine))
