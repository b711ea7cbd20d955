"""`python -m gpu_worker.native`: which kernels would compute here, built now if need be."""

import sys

from gpu_worker.native.build import NativeUnavailable, built_library
from gpu_worker.native.library import open_library


def main() -> int:
    """Says it in one line on stderr; 1 and the reason where there are none."""
    try:
        library = open_library(built_library())
    except NativeUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"native {library.radixd_kernels().decode()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
