"""Everything that needs a card, in one command and less than eight minutes.

    python tests/gpu/run_all.py [--json FILE] [--only NAME] [--quick] [--seconds N] [--interpret]

First every case is checked against float64, on as many processes as compile in parallel; then the
card's own roofs are measured, and each case against them; then an engine with random weights of an
8B shape is run.  Prints one table, in Markdown as kernels/README.md has it, and one JSON object,
which goes to a file where one is named.  Ends with 1 where anything is wrong or failed, 2 where
nothing was run; aims that are missed are marked, and what time does not suffice for is "not run".

`--interpret` needs no card: all cases at tiny sizes in Triton's interpreter, and no times.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    # The folder of this file is no place to import from: its names are those of a package.
    sys.path[0] = str(ROOT)

SECONDS = 465.0


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="run_all", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose title has this")
    parser.add_argument("--quick", action="store_true", help="fewer cases; times with an aim")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all; %(default)s")
    parser.add_argument("--interpret", action="store_true", help="tiny sizes, without a card")
    asked = parser.parse_args(argv)
    started_s = time.monotonic()
    # Decided when a file of kernels is first read, and inherited by every process.
    os.environ["TRITON_INTERPRET"] = "1" if asked.interpret else "0"
    # Cases compile side by side already; torch's compiler need not start processes of its own.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from tests.gpu.report import as_json, as_markdown
    from tests.gpu.session import Session, SessionOptions, has_card
    from tests.gpu.timing import Budget

    if not asked.interpret and not has_card():
        print("no CUDA device: nothing was run (--interpret needs none)", file=sys.stderr)
        return 2
    session = Session(
        SessionOptions(only=asked.only, is_quick=asked.quick, is_interpreted=asked.interpret),
        Budget(seconds=asked.seconds, started_s=started_s),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if session.is_empty:
        print(f"no case has {asked.only!r} in its title", file=sys.stderr)
        return 2
    report = session.run()
    print(as_markdown(report))
    text = json.dumps(as_json(report), indent=1)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return report.exit_status


if __name__ == "__main__":
    sys.exit(main())
