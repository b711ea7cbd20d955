"""A fake server and a way to run the command line in this process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from radixd.cli.app import main
from tests.cli.fake_server import FakeServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command printed and returned."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "120")

    def run_command(*argv: str) -> Ran:
        capsys.readouterr()
        code = main(list(argv))
        captured = capsys.readouterr()
        return Ran(code=code, out=captured.out, err=captured.err)

    return run_command
