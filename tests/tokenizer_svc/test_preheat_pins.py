"""Preheats with pins: what is asked for, what is refused, and success in part."""

from typing import Any

import grpc
import pytest

from protos.radixd.scheduler.v1 import scheduler_pb2 as internal
from protos.radixd.v1 import admin_pb2 as pb
from tests.tokenizer_svc.client import refused
from tests.tokenizer_svc.conftest import Served

DAY_MS = 24 * 3600 * 1000


async def preheat(served: Served, **fields: Any) -> list[pb.PreheatedPrefix]:
    request = pb.PreheatRequest(**({"prefixes": ["abc"]} | fields))
    return list((await served.admin.Preheat(request)).prefixes)


async def test_without_a_pin(served: Served):
    await preheat(served)
    await preheat(served, pin=pb.PIN_LEVEL_NONE)
    for submit in served.scheduler.seen.submits:
        assert (submit.pin, submit.pin_ttl_ms) == (pb.PIN_LEVEL_NONE, 0)


async def test_each_prefix_is_pinned_or_says_why_not(served: Served):
    def answer(submit: internal.Submit) -> internal.Output:
        num_tokens = len(submit.prompt_ids) // 4
        if submit.prompt_ids.startswith(b"f"):
            return internal.Output(
                ending=internal.ENDING_REJECTED_TOO_LARGE, message="more than the pool"
            )
        fits = num_tokens < 4
        return internal.Output(
            ending=internal.ENDING_PREHEATED,
            computed_tokens=num_tokens,
            pin_id=f"pin-{num_tokens}" if fits else "",
            pinned_tokens=num_tokens if fits else 0,
            pin_error="" if fits else "the budget of pins has 3 slots left",
        )

    served.scheduler.behavior.answer = answer
    prefixes = ["abc", "abcdef", "full", ""]
    done = await preheat(
        served, prefixes=prefixes, pin=pb.PIN_LEVEL_HARD, ttl_ms=30 * DAY_MS, cache_domain="d"
    )
    pinned, too_long, full, empty = done
    assert (pinned.pin_id, pinned.pinned_tokens, pinned.pin_error) == ("pin-3", 3, "")
    assert (too_long.computed_tokens, too_long.error) == (6, "")
    assert too_long.pin_error == "the budget of pins has 3 slots left"
    assert (too_long.pin_id, too_long.pinned_tokens) == ("", 0)
    assert (full.error, full.pin_id) == ("prefixes[2]: more than the pool", "")
    assert empty.error.startswith("prefixes[3]: ")
    submits = served.scheduler.seen.submits
    assert len(submits) == 3
    asked = {(s.pin, s.pin_ttl_ms, s.cache_domain, s.preheat) for s in submits}
    assert asked == {(pb.PIN_LEVEL_HARD, 30 * DAY_MS, "d", True)}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ttl_ms": 1000}, "ttl_ms"),
        ({"ttl_ms": 1000, "pin": pb.PIN_LEVEL_NONE}, "ttl_ms"),
        ({"ttl_ms": 0, "pin": pb.PIN_LEVEL_SOFT}, "ttl_ms"),
        ({"ttl_ms": 30 * DAY_MS + 1, "pin": pb.PIN_LEVEL_HARD}, "ttl_ms"),
        ({"pin": pb.PIN_LEVEL_UNSPECIFIED}, "pin"),
        ({"pin": 9}, "pin"),
        ({"pin": -1}, "pin"),
    ],
)
async def test_terms_that_are_refused(served: Served, fields: dict[str, Any], field: str):
    got = await refused(preheat(served, **fields))
    assert (got.code, got.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert served.scheduler.seen.submits == []
