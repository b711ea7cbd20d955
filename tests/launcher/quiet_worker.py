"""Stands in for a worker: lives, says nothing to anybody, ends when told.

What it does besides is in QUIET_WORKER: "exit" ends it with status 3 after some output, "stubborn"
makes it ignore SIGTERM.
"""

import os
import signal
import sys
import threading


def main() -> None:
    mode = os.environ.get("QUIET_WORKER", "")
    for number in range(30):
        sys.stderr.write(f"line {number}\n")
    if mode == "exit":
        raise SystemExit(3)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    threading.Event().wait()


if __name__ == "__main__":
    main()
