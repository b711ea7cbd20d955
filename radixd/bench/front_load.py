"""The load of `radixd bench front`: one process that opens streams at once and notes what comes.

`python -m radixd.bench.front_load ORDER` with an Order as JSON; a Load as JSON on stdout.  Reads
sockets in one loop without a library in between, and what it read once all is over.
"""

import json
import os
import resource
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from radixd.bench.cores import run_on
from radixd.bench.front_streams import DOORS, Event, Lines

READ_BYTES = 1 << 16
SILENCE_S = 60.0
"""Without a byte for so long, a stream is taken for broken."""
CLIENT = "client"
"""This process, among those whose processor time is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do."""

    door: str
    """A name of DOORS."""
    host: str
    port: int
    first_stream: int
    num_streams: int
    """Streams are numbered from the first on."""
    max_tokens: int
    pids: dict[str, int]
    """Of the services, by name."""
    cores: list[int] = field(default_factory=list)
    """Where this process is to run; empty: anywhere."""

    @property
    def streams(self) -> range:
        """Their numbers."""
        return range(self.first_stream, self.first_stream + self.num_streams)


@dataclass(slots=True, kw_only=True)
class Moment:
    """A point in time, and the processor time that each process had used by then."""

    now_ns: int
    cpu_s: dict[str, float]


@dataclass(slots=True, kw_only=True)
class Load:
    """What came.

    The window is the time in which all streams ran: from the first token of the last to begin to
    the end of the first to end.
    """

    arrivals: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By stream: nanoseconds and tokens of each message that carried tokens."""
    begin: Moment
    end: Moment


class Broken(Exception):
    """A stream ended early, or nothing comes any more."""


def run(order: Order) -> Load:
    """Opens the streams, reads them to their ends.

    Raises:
        Broken: not all that was asked for came.
    """
    lines: Lines = DOORS[order.door](order.streams, max_tokens=order.max_tokens)
    noted, begin, end = _read(order, lines)
    arrivals: dict[int, list[tuple[int, int]]] = {stream: [] for stream in order.streams}
    for now_ns, event in noted:
        if event.data and (num_tokens := lines.num_tokens(event.data)):
            arrivals[event.stream].append((now_ns, num_tokens))
    for stream, came in arrivals.items():
        num_tokens = sum(count for _, count in came)
        if num_tokens != order.max_tokens:
            raise Broken(f"stream {stream}: {num_tokens} of {order.max_tokens} tokens came")
    return Load(arrivals=arrivals, begin=begin, end=end)


def _read(order: Order, lines: Lines) -> tuple[list[tuple[int, Event]], Moment, Moment]:
    noted: list[tuple[int, Event]] = []
    begun: set[int] = set()
    ended: set[int] = set()
    begin = end = None
    with selectors.DefaultSelector() as selector:
        for index, request in enumerate(lines.connections()):
            connection = socket.create_connection((order.host, order.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, (index, request))
        for key in list(selector.get_map().values()):
            key.fileobj.sendall(key.data[1])  # type: ignore[union-attr]
        while len(ended) < order.num_streams:
            for connection, index in _ready(selector):
                data = connection.recv(READ_BYTES)
                now_ns = time.monotonic_ns()
                if not data:
                    selector.unregister(connection)
                    connection.close()
                events, answers = lines.feed(index, data)
                if answers:
                    connection.sendall(answers)
                noted += [(now_ns, event) for event in events]
                begun.update(event.stream for event in events if event.data)
                ended.update(event.stream for event in events if not event.data)
            if begin is None and len(begun) == order.num_streams:
                begin = _moment(order)
            if end is None and ended:
                end = _moment(order)
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    if begin is None or end is None or begin.now_ns >= end.now_ns:
        raise Broken("the streams did not run beside each other; they need more tokens")
    return noted, begin, end


def _ready(selector: selectors.BaseSelector) -> list[tuple[socket.socket, int]]:
    if not selector.get_map():
        raise Broken("all connections were closed")
    ready = selector.select(SILENCE_S)
    if not ready:
        raise Broken(f"nothing came for {SILENCE_S:g} s")
    return [(key.fileobj, key.data[0]) for key, _ in ready]  # type: ignore[misc]


def _moment(order: Order) -> Moment:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = {name: cpu_seconds(pid) for name, pid in order.pids.items()}
    cpu_s[CLIENT] = used.ru_utime + used.ru_stime
    return Moment(now_ns=time.monotonic_ns(), cpu_s=cpu_s)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all of its threads, in ticks of the system's clock."""
    # The name before the last bracket may hold anything.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(argv: list[str]) -> int:
    """Runs an order; 1, and one line on stderr, when it breaks."""
    try:
        order = Order(**json.loads(argv[0]))
        run_on(0, order.cores)
        load = run(order)
    except (Broken, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(json.dumps(asdict(load)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
