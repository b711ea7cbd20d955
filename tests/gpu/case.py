"""What is asked of a kernel: that it is right (Check), and how fast it is (Speed)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.gpu.comparison import Comparison
from tests.gpu.place import Place
from tests.gpu.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A kernel on one input against float64."""

    kernel: str
    """The file of kernels/ it is about, without ".py"."""
    name: str
    run: Callable[[Place], Comparison]
    is_core: bool = True
    """Whether it is run where little time is given."""

    @property
    def title(self) -> str:
        """Unique among all cases."""
        return f"{self.kernel}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a time is wanted to be; missing it is no error."""

    quantity: Literal["share of roofline", "us"]
    """The first is to be reached, the second not to be passed."""
    limit: float
    text: str

    def is_met(self, *, share: float, time_us: float) -> bool:
        """Whether a row's numbers are what is wanted."""
        return share >= self.limit if self.quantity != "us" else time_us < self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Inputs made, ready to be run again and again."""

    work: Work
    """What one run has to move and to compute at least, at these sizes."""
    run: Callable[[], object]
    """Through the launcher that the engine calls."""
    check: Callable[[], Comparison]
    """Of what `run` makes of these inputs, all of it or a part."""
    rivals: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    """The same, or what comes nearest, by torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A kernel at a size that an engine has."""

    kernel: str
    name: str
    prepare: Callable[[Place], Prepared]
    aim: Aim | None = None

    @property
    def is_core(self) -> bool:
        """See Check."""
        return self.aim is not None

    @property
    def title(self) -> str:
        """Unique among all cases."""
        return f"{self.kernel}: {self.name}"


Case = Check | Speed
