"""What a plan weighs on the wire, and what it costs to write and to read."""

from __future__ import annotations

from protos.plan import BatchPlan, Envelope
from protos.wire import decode, encode
from scheduler_svc.bench.scale import Scale
from scheduler_svc.bench.stopwatch import Stopwatch, figures_us


def plan_codec(plan: BatchPlan, scale: Scale) -> tuple[int, dict[str, float]]:
    """Bytes of a plan, and µs to encode and decode it."""
    envelope = Envelope(epoch=1 << 60, message=plan)
    watches = []
    for _ in range(scale.num_repetitions):
        watches.append(watch := Stopwatch())
        for _ in range(scale.num_codings):
            watch.start()
            read = decode(encode(envelope))
            watch.stop()
            watch.lap()
            assert read == envelope
    return len(encode(envelope)), figures_us(watches)
