"""Policies of the public schema to the core's configuration and back."""

from dataclasses import replace

import pytest

from protos.errors import InvalidRequest
from protos.radixd.v1 import policy_pb2
from scheduler_svc.core.config import CHANGEABLE, POLICY_NAMES, SchedulerConfig
from scheduler_svc.core.policy_change import MAX_WORKLOADS, changed
from scheduler_svc.policy_translation import (
    changes_from_proto,
    difference,
    families_to_proto,
    policies_to_proto,
    refusal,
)


def test_the_schema_has_every_changeable_field_and_no_other() -> None:
    assert tuple(policy_pb2.Policies.DESCRIPTOR.fields_by_name) == CHANGEABLE


def test_all_policies_in_force_are_told_and_can_be_set_again() -> None:
    config = SchedulerConfig(waiting_order="lpm", most_passes=3, itl_target_ms=2.5)
    policies = policies_to_proto(config)
    assert {field.name for field, _ in policies.ListFields()} == set(CHANGEABLE)
    assert changed(SchedulerConfig(), changes_from_proto(policies)) == config


def test_only_what_is_set_changes_and_zero_is_a_value() -> None:
    policies = policy_pb2.Policies(weight_cost=0.0, chunk_sizes={"chat": 0, "own": 8})
    changes = changes_from_proto(policies)
    assert changes == {"weight_cost": 0.0, "chunk_sizes": {"chat": 0, "own": 8}}
    after = changed(SchedulerConfig(), changes)
    sizes = {"code": 1024, "longform": 2048, "own": 8}
    assert after == replace(SchedulerConfig(), weight_cost=0.0, chunk_sizes=sizes)
    assert changes_from_proto(policy_pb2.Policies()) == {}


@pytest.mark.parametrize("workload", ["", "x" * 65])
def test_a_class_needs_a_name(workload: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        changes_from_proto(policy_pb2.Policies(chunk_sizes={workload: 5}))
    assert caught.value.field == "policies.chunk_sizes"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"high_watermark": 1.5}, "high_watermark"),
        ({"high_watermark": float("nan")}, "high_watermark"),
        ({"waiting_order": "sjf"}, "waiting_order"),
        ({"most_passes": 0}, "most_passes"),
        ({"page_size": 4}, "page_size"),
        ({"chunk_sizes": {str(number): 1 for number in range(MAX_WORKLOADS)}}, "chunk_sizes"),
    ],
)
def test_what_the_core_refuses_names_the_field_of_the_request(
    changes: dict[str, object], field: str
) -> None:
    with pytest.raises(ValueError, match=":") as caught:
        changed(SchedulerConfig(), changes)
    error = refusal(caught.value)
    assert error.field == f"policies.{field}"
    assert error.message
    assert not error.message.startswith(field)


def test_every_name_that_may_be_set_is_explained() -> None:
    families = {family.name: family for family in families_to_proto()}
    assert set(families) == set(POLICY_NAMES)
    for field, names in POLICY_NAMES.items():
        options = families[field].options
        assert [option.name for option in options] == list(names)
        for option in options:
            assert len(option.summary) > 40, option.name
            assert "\n" not in option.summary
            changed(SchedulerConfig(), {field: option.name})


def test_a_difference_holds_what_changed_alone() -> None:
    old = SchedulerConfig()
    new = changed(old, {"most_passes": 5, "chunk_sizes": {"chat": 1}, "weight_age": 50.0})
    assert difference(old, new) == (
        {"most_passes": 64, "chunk_sizes": {"chat": 512, "code": 1024, "longform": 2048}},
        {"most_passes": 5, "chunk_sizes": {"chat": 1, "code": 1024, "longform": 2048}},
    )
    assert difference(old, old) == ({}, {})
