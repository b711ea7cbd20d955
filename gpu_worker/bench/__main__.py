"""`python -m gpu_worker.bench MODEL`: the roofline of this machine and of a model on it.

One JSON object on stdout.  What is measured next is said on stderr, a line each.
"""

import json
import sys
from typing import Any

from gpu_worker.bench.roofline import ceilings, measure
from gpu_worker.blocks import WeightFormat
from gpu_worker.native.build import NativeUnavailable, built_library
from gpu_worker.native.library import open_library
from gpu_worker.native.native_weights import read_native_weights
from gpu_worker.open_model import open_model
from protos.errors import InvalidRequest, ModelError
from radixd.chassis.model_source import resolve_model
from radixd.chassis.processors import usable_processors

_WEIGHTS: tuple[WeightFormat, ...] = ("float32", "int8", "int4")
USAGE_EXIT_STATUS = 2


def main(argv: list[str]) -> int:
    """Measures; 2, and one line on stderr, where there is no compiled backend or no such model."""
    try:
        value = _figures(argv[0])
    except (NativeUnavailable, InvalidRequest, ModelError) as error:
        print(error, file=sys.stderr)
        return USAGE_EXIT_STATUS
    sys.stdout.write(json.dumps(value) + "\n")
    return 0


def _figures(model: str) -> dict[str, Any]:
    source = resolve_model(model)
    value = measure(open_library(built_library()), usable_processors(), _announce)
    with open_model(source) as opened:
        of_formats = []
        for weights in _WEIGHTS:
            _announce(f"{source.model_id} in {weights}")
            packed = read_native_weights(opened.config, opened.quiet_reader(), weights)
            of_formats.append(ceilings(packed, value))
    return value | {"model": source.model_id, "ceilings": of_formats}


def _announce(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
