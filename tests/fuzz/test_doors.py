"""The fuzz run that `make fuzz` does for ten minutes, for a few seconds; and its own parts."""

import random

import pytest

from tests.fuzz.doors import FLAGS, fuzz
from tests.fuzz.random_messages import random_bytes, request_classes
from tests.system.stack import launched


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_both_doors_hold_under_noise():
    with launched(*FLAGS) as stack:
        said, faults = await fuzz(stack, seconds=10, seed=5)
        assert not faults, "\n".join([said, *faults[:20]])


def test_noise_is_the_same_for_a_seed_and_reaches_the_fields():
    for method, kind in request_classes().items():
        drawn = [random_bytes(kind, random.Random(f"{method}{i}")) for i in range(60)]
        assert drawn == [random_bytes(kind, random.Random(f"{method}{i}")) for i in range(60)]
        assert len(set(drawn)) > 3
