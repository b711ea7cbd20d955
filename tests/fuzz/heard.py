"""What a door answered to noise."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Heard:
    """Counts by status, and what no input may bring about."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Empty is well."""

    def __str__(self) -> str:
        return ", ".join(f"{status} {count}" for status, count in sorted(self.counts.items()))
