"""What a terminal shows while a command measures."""

import contextlib
from collections.abc import Iterator

from radixd.bench.child import Announce
from radixd.cli.terminal import err, snippet


@contextlib.contextmanager
def measuring_progress() -> Iterator[Announce]:
    """What is measured now, on a terminal.  Not animated: that would run on the measured cores."""
    if not err.is_terminal:
        yield lambda what: None
        return
    yield lambda what: err.print(f"measuring: {snippet(what, 60)}", style="dim", markup=False)
