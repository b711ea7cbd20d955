"""Log lines: JSON for machines, the same keys from our events and from libraries'."""

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import logging, sys
import structlog
from radixd.chassis.logs import configure_logs

configure_logs("some_svc", sys.argv[1], shows_values=sys.argv[2:] != ["private"])
log = structlog.get_logger()
log.debug("small_thing")
log.info("thing_done", request_id="r1", num_tokens=3)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("thing_failed")
logging.getLogger("grpc.some").info("their noise")
logging.getLogger("grpc.some").error("their %s", "trouble")
"""


def lines(*words: str) -> list[dict]:
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 0
    assert result.stdout == ""
    return [json.loads(line) for line in result.stderr.splitlines()]


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", ["small_thing", "thing_done", "thing_failed", "their trouble"]),
        ("info", ["thing_done", "thing_failed", "their trouble"]),
        ("error", ["thing_failed", "their trouble"]),
    ],
)
def test_lines_are_json_with_the_same_keys(level, events):
    found = lines(level)
    assert [line["event"] for line in found] == events
    for line in found:
        assert line["service"] == "some_svc"
        assert line["level"] in ("debug", "info", "error")
        assert line["timestamp"].endswith("Z")


def test_keys_and_tracebacks_are_kept():
    done, failed, theirs = lines("info")
    assert (done["request_id"], done["num_tokens"]) == ("r1", 3)
    assert "ZeroDivisionError" in failed["exception"]
    assert theirs["logger"] == "grpc.some"


def test_an_exception_may_be_told_without_what_it_quotes():
    assert "division by zero" in lines("info")[1]["exception"]
    exception = lines("info", "private")[1]["exception"]
    assert exception.endswith("ZeroDivisionError")
    assert 'File "<string>"' in exception
    assert "division by zero" not in exception
