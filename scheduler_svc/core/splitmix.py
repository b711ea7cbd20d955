"""Chance without a generator: bits as a pure function of numbers, the same in every process."""

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """A bijection of 64 bits that looks like chance (Steele, Lea and Flood 2014: SplitMix)."""
    value = (value + GOLDEN_GAMMA) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def draw_lot(seed: int, number: int) -> int:
    """The lot with this number in the sequence of a seed, in [0, 2**64)."""
    return splitmix64(seed + number * GOLDEN_GAMMA)
