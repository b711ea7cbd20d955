"""`python -m scheduler_svc.bench [SCALE]`: the figures of the core, one JSON object on stdout.

What is measured next is said on stderr, a line each.
"""

import json
import sys

from scheduler_svc.bench.core_figures import measure
from scheduler_svc.bench.scale import scale_of


def main(argv: list[str]) -> int:
    """Measures; returns the exit status."""
    scale = scale_of(float(argv[0])) if argv else scale_of(1.0)
    value = measure(scale, lambda what: print(what, file=sys.stderr, flush=True))
    sys.stdout.write(json.dumps(value) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
