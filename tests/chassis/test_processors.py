"""Processors that may be used: a container's quota counts, whichever way it is written down."""

import os
from pathlib import Path

import pytest

from radixd.chassis.processors import usable_processors


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def system(root: Path, groups: str, **files: str) -> Path:
    """A root folder with these lines of /proc/self/cgroup; names of files have `/` as `__`."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_", "cpu.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("max 100000\n", 16),
        ("400000 100000\n", 4),
        ("350000 100000\n", 3),
        ("50000 100000\n", 1),
        ("9900000 100000\n", 16),
        ("nonsense\n", 16),
        ("100000 0\n", 16),
        ("", 16),
    ],
)
def test_a_container_with_one_hierarchy(tmp_path: Path, text: str, count: int) -> None:
    assert usable_processors(system(tmp_path, "0::/\n", cpu_max=text)) == count


def test_the_tightest_group_around_counts(tmp_path: Path) -> None:
    files = {
        "cpu_max": "max 100000",
        "a__cpu_max": "200000 100000",
        "a__b__cpu_max": "800000 100000",
    }
    assert usable_processors(system(tmp_path, "0::/a/b\n", **files)) == 2


@pytest.mark.parametrize("name", ["", "box/0123"])
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "count"), [("-1", 16), ("250000", 2)])
def test_a_container_with_a_hierarchy_a_controller(
    tmp_path: Path, name: str, mount: str, quota: str, count: int
) -> None:
    """Of the group `box/0123` a container may see the root alone."""
    files = {f"{mount}__cpu_cfs_quota_us": quota, f"{mount}__cpu_cfs_period_us": "100000"}
    groups = f"3:cpuset:/{name}\n2:cpu,cpuacct:/{name}\n1:name=systemd:/{name}\n0::/{name}\n"
    assert usable_processors(system(tmp_path, groups, **files)) == count


def test_a_system_without_groups(tmp_path: Path) -> None:
    assert usable_processors(tmp_path) == 16
    assert usable_processors() >= 1
