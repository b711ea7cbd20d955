"""A health check for containers, as a program: `python -m radixd.chassis.health_probe HOST:PORT`.

Status 0 when the standard gRPC health service says SERVING, of the whole server or of one service
named after the address.  Costs the server one small call; starts no request of a model.
"""

import sys

from radixd.chassis.readiness import SERVING, readiness

USAGE_EXIT_STATUS = 2


def main(argv: list[str]) -> int:
    """Prints what the server says; 0 when SERVING, 1 when not, 2 for wrong usage."""
    if not 1 <= len(argv) <= 2:
        print("usage: health_probe HOST:PORT [SERVICE]", file=sys.stderr)
        return USAGE_EXIT_STATUS
    state = readiness(argv[0], service=argv[1] if len(argv) == 2 else "")
    print(f"{' '.join(argv)}: {state}")
    return 0 if state == SERVING else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
