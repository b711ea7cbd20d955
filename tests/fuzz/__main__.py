"""`python -m tests.fuzz --seconds 600 --seed 1`: both doors of a server of its own under noise."""

import argparse
import asyncio
import random
import sys

from tests.fuzz.doors import FLAGS, fuzz
from tests.system.stack import launched


def main() -> int:
    """0: nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long; 600 when absent")
    parser.add_argument("--seed", type=int, help="of all that is random; drawn when absent")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if asked.seed is None else asked.seed
    print(f"{asked.seconds:g} s with seed {seed}", flush=True)
    with launched(*FLAGS) as stack:
        said, faults = asyncio.run(fuzz(stack, seconds=asked.seconds, seed=seed))
    print(said)
    for fault in faults:
        print(f"\nfault: {fault}")
    print(f"\n{len(faults)} faults; seed {seed}" if faults else "no faults")
    return 1 if faults else 0


sys.exit(main())
