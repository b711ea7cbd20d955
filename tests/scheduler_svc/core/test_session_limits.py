"""Limits of sessions, turned while there are some, and what all of them keep."""

import pytest

from tests.scheduler_svc.core.test_pins import SECOND
from tests.scheduler_svc.core.test_prefix_cache import letters
from tests.scheduler_svc.core.test_sessions import listed, talk, turn


def test_a_shorter_time_holds_for_the_sessions_there_are():
    bench = talk(session_ttl_s=10.0)
    for n in range(3):
        turn(bench, f"turn{n}", letters(20, seed=n), session=f"s{n}")
        bench.now_ns += 3 * SECOND
    listed(bench)  # the core knows the time
    bench.core.set_policy({"session_ttl_s": 5.0})
    assert bench.core.num_sessions == 1, "those of 9 and 6 seconds ago are too old now"
    assert listed(bench)["s2"].expires_in_ns == pytest.approx(2 * SECOND, abs=SECOND / 100)
    bench.core.set_policy({"session_ttl_s": 100.0})
    turn(bench, "late", letters(20, seed=3), session="s3")
    bench.now_ns += 95 * SECOND
    assert list(listed(bench)) == ["s2", "s3"]
    bench.now_ns += 4 * SECOND
    assert list(listed(bench)) == ["s3"]
    bench.core.set_policy({"session_ttl_s": 0.0})
    assert not bench.core.num_sessions
    assert not any(node.pins for node in bench.core.state.tree.nodes())
    turn(bench, "none", letters(20))
    assert not listed(bench)


def test_fewer_sessions_forget_the_least_recently_used_of_each_tenant():
    bench = talk(num_slots=400)
    for n in range(4):
        for tenant in ("", "other"):
            name = f"{tenant}{n}"
            turn(bench, name, letters(20, seed=n), session=name, tenant=tenant)
    turn(bench, "again", letters(20), session="0")
    bench.core.set_policy({"max_sessions": 2})
    assert sorted(listed(bench)) == ["0", "3", "other2", "other3"]
    turn(bench, "more", letters(20, seed=5), session="more")
    assert sorted(listed(bench, "")) == ["0", "more"]


def test_stems_that_sessions_share_are_counted_once():
    bench = talk(num_slots=400)
    stem, sizes = letters(20), []
    for n in range(3):
        turn(bench, f"turn{n}", [*stem, *letters(5, seed=n)], session=f"s{n}")
        sizes.append(bench.core.num_session_tokens)
    assert sizes == [30, 40, 50]
    assert sum(view.kept_tokens for view in listed(bench).values()) == 90
    bench.core.flush()
    assert bench.core.num_session_tokens == 0
