"""A child's lines as people and programs get them."""

import json

from radixd.launcher.log_line import brief, for_machine, for_terminal, is_progress

EVENT = json.dumps(
    {
        "event": "model_loaded",
        "num_layers": 30,
        "level": "info",
        "timestamp": "2026-11-29T22:21:03.233104Z",
        "service": "gpu_worker",
    }
)


def test_events_are_readable_on_a_terminal():
    assert for_terminal("x", EVENT) == "22:21:03 info    gpu_worker: model_loaded num_layers=30"
    failed = json.dumps({"event": "failed", "exception": "Traceback\nBoom"})
    assert for_terminal("x", failed).endswith("x: failed\nTraceback\nBoom")


def test_other_lines_get_the_name_of_the_child():
    for line in ("plain", "[1, 2]", "{not json", '{"no": "event"}', ""):
        assert for_terminal("child", line) == f"child: {line}"


def test_events_stay_as_they_are_for_programs():
    assert for_machine("x", EVENT) == EVENT
    assert for_machine("child", "Traceback") == "child: Traceback"
    assert for_machine("child", "child: no such file") == "child: no such file"


def test_brief_fits_a_progress_line():
    assert brief(EVENT) == "model_loaded num_layers=30"
    assert brief("x" * 100) == "x" * 57 + "..."


def test_progress_is_drawn_as_a_bar():
    line = '{"event": "progress", "what": "loading smollm2", "percent": 50}'
    assert is_progress(line)
    assert brief(line) == f"loading smollm2 {'█' * 12}{'░' * 12} 50 %"
    line = '{"event": "preheat_progress", "done": 3, "total": 4, "tokens": 960}'
    assert is_progress(line)
    assert brief(line) == f"preheating {'█' * 18}{'░' * 6} 75 %, 3 of 4 prefixes, 960 tokens"
    assert "0 %" in brief('{"event": "preheat_progress", "done": 0, "total": 0, "tokens": null}')
    assert not is_progress('{"event": "preheat_done", "total": 4}')
    assert not is_progress('{"event": "worker_ready"}')
    assert not is_progress("progress")
