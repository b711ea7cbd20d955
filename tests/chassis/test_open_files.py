"""The limit on open files is raised as far as the user may, and never lowered."""

import resource

import pytest

from radixd.chassis.open_files import ENOUGH, allow_many_files

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 1 << 20), (ENOUGH, 1 << 20)),
        ((1024, UNLIMITED), (ENOUGH, UNLIMITED)),
        ((1 << 18, 1 << 20), None),
        ((4096, 4096), None),
        ((UNLIMITED, UNLIMITED), None),
    ],
)
def test_the_limit_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[int, int],
    after: tuple[int, int] | None,
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    allow_many_files()
    assert set_to == ([] if after is None else [after])
