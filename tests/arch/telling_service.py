"""Runs a service as its program would, and says at its end what it had imported.

`python -m tests.arch.telling_service MODULE ARGS...`: the last line of stdout is a JSON list of the
names of all modules in the process.
"""

import json
import runpy
import sys


def main(argv: list[str]) -> None:
    sys.argv = argv
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.write(json.dumps(sorted(sys.modules)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
