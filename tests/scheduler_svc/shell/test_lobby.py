"""The lobby: who waits for the first worker, and what operators see of it."""

import pytest

from scheduler_svc.core.request import Event
from scheduler_svc.core.views import Phase, WaitingReason
from scheduler_svc.lobby import Lobby
from tests.scheduler_svc.shell.scripted import a_submission


@pytest.fixture
def lobby() -> Lobby:
    lobby = Lobby(max_waiting=9)
    lobby.submit(a_submission("a", client_request_id="mine", tenant="acme"), 100)
    lobby.submit(a_submission("b", priority=4, workload="code", deadline_ns=900), 200)
    lobby.submit(a_submission("c", tenant="acme", preheat=True), 300)
    return lobby


def test_requests_are_listed_in_order_of_arrival(lobby: Lobby) -> None:
    views, num_left_out = lobby.list_requests(500, 99)
    assert [view.request_id for view in views] == ["mine", "b", "c"]
    assert num_left_out == 0
    second = views[1]
    assert (second.phase, second.waiting_reason) == (Phase.WAITING, WaitingReason.NO_WORKER)
    assert (second.priority, second.workload, second.prompt_tokens) == (4, "code", 2)
    assert (second.age_ns, second.deadline_in_ns, second.cached_tokens) == (300, 400, None)
    assert [view.preheat for view in views] == [False, False, True]


def test_a_list_may_be_of_one_tenant_and_cut_short(lobby: Lobby) -> None:
    views, num_left_out = lobby.list_requests(500, 1, "acme")
    assert [view.request_id for view in views] == ["mine"]
    assert num_left_out == 1
    assert lobby.list_requests(500, 99, "nobody") == ([], 0)


def test_a_request_is_explained_by_either_id(lobby: Lobby) -> None:
    explanation = lobby.explain("mine", 500)
    assert explanation == lobby.explain("a", 500)
    assert explanation is not None
    assert (explanation.rank, explanation.num_waiting) == (1, 3)
    assert "first worker" in explanation.summary
    assert explanation.history == (Event(100, "submitted", ""),)
    third = lobby.explain("c", 500)
    assert third is not None
    assert third.rank == 3
    assert "number 3 of the 3" in third.summary


def test_others_requests_and_unknown_ids_are_not_explained(lobby: Lobby) -> None:
    assert lobby.explain("b", 500, "acme") is None
    assert lobby.explain("mine", 500, "") is None
    assert lobby.explain("x", 500) is None
    assert lobby.explain("", 500) is None


def test_what_leaves_is_no_longer_shown(lobby: Lobby) -> None:
    lobby.cancel("a")
    assert [output.request_id for output in lobby.expire(900)] == ["b"]
    views, _ = lobby.list_requests(900, 99)
    assert [view.request_id for view in views] == ["c"]
    assert [submission.request_id for submission in lobby.empty()] == ["c"]
    assert lobby.list_requests(900, 99) == ([], 0)
