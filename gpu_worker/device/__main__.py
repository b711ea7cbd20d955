"""`python -m gpu_worker.device [cuda|cpu]`: what the kernels would run on here."""

import sys

from gpu_worker.device.gpu import NoGpu, check_interpreter, find_gpu


def main(device: str = "cuda") -> int:
    """Says it in one line on stderr; 1 and the reason where they cannot."""
    try:
        if device == "cpu":
            check_interpreter()
            answer = "triton, interpreted on the CPU"
        else:
            gpu = find_gpu()
            answer = f"triton, {gpu.name}, {gpu.total_bytes / 2**30:.1f} GiB"
    except NoGpu as error:
        print(error, file=sys.stderr)
        return 1
    print(answer, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
