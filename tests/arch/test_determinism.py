"""One story, told to the core in processes with different hash seeds: the same bytes each time.

Catches what the reading of sources (test_purity) cannot: a set under another name, an order that
came from `id`, a dependence on what else the process did.
"""

import os
import subprocess
import sys

from tests.arch.source import ROOT


def digests(hash_seed: str) -> list[str]:
    """What tests/arch/replay.py prints under this hash seed: one line a waiting order."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.arch.replay"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_plans_do_not_depend_on_the_process() -> None:
    first = digests("0")
    assert len(first) == 2
    assert len({line.split()[1] for line in first}) == 2, "both orders said the same: too tame"
    assert digests("1") == first
    assert digests("4242") == first


def test_a_dependence_on_the_hash_seed_is_noticed() -> None:
    """The method works: a set of strings does show its order under these seeds."""
    code = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(seen) == 3
