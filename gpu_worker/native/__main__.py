"""`python -m gpu_worker.native [KERNELS]`: which kernels would compute here, built if need be."""

import sys

from gpu_worker.native.build import NativeUnavailable, built_library
from gpu_worker.native.library import AUTO, find_kernels, open_library


def main(wanted: str = AUTO) -> int:
    """Says it in one line on stderr; 1 and the reason where there are none."""
    try:
        kernels = find_kernels(open_library(built_library()), wanted)
    except NativeUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"native {kernels}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
