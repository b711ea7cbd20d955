"""Random batches on every shape and precision, in a process of their own: `python -m` with a seed.

For runs under a sanitizer, so without torch; the bits are looked at all the same.
"""

import random
import sys

from tests.gpu_worker.random_models import NATIVE, SHAPES
from tests.gpu_worker.test_same_bits import Plan, run

_SHARES = (1.0, 0.5)
_OWN = (1, 6)
_STEMS = (5, 65, 257)
_MOST = (2, 17, 64)


def main(seed: int) -> None:
    """One batch each."""
    draw = random.Random(seed)
    for number, (shape, kind) in enumerate((s, k) for s in SHAPES for k in NATIVE):
        plans = [
            Plan(
                share=draw.choice(_SHARES),
                num_own=draw.choice(_OWN),
                cached=draw.random() < 0.7,
                most=draw.choice(_MOST),
                branch=draw.randrange(2),
            )
            for _ in range(draw.choice((2, 3, 17)))
        ]
        run(shape, kind, draw.choice(_STEMS), plans, seed=number)  # one to three threads in turn
    print("same bits everywhere")


if __name__ == "__main__":
    main(int(sys.argv[1]))
