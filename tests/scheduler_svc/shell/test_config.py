"""Options to the core's knobs: same names, defaults and policies; tenants from their file."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from protos.errors import InvalidRequest
from radixd.chassis.setting_sources import load_settings
from radixd.chassis.settings import Settings
from scheduler_svc.core.config import CHANGEABLE, POLICY_NAMES, SchedulerConfig, TenantPolicy
from scheduler_svc.server import config_from_settings

NAMES = {field.name for field in fields(SchedulerConfig)}

CHANGED = {
    "page_size": 4,
    "max_running": 3,
    "max_waiting": 5,
    "pipeline_depth": 1,
    "public_domains": ("a", "b"),
    "waiting_order": "vtc",
    "weight_prefix": 2.0,
    "weight_age": 3.0,
    "weight_cost": 4.0,
    "most_passes": 6,
    "policy_seed": 7,
    "admission_estimate": "peak",
    "decode_reserve": 0.3,
    "length_quantile": 0.4,
    "max_batch_tokens": 8,
    "chunk_size": 9,
    "chunk_sizes": {"own": 10},
    "prefill_share": 0.5,
    "itl_target_ms": 11.0,
    "retraction_policy": "cost",
    "retraction_keep": "none",
    "high_watermark": 0.8,
    "low_watermark": 0.7,
    "eviction_policy": "slru",
    "pin_budget": 0.6,
    "session_ttl_s": 5.5,
    "max_sessions": 12,
    "speculation": "off",
    "max_drafts": 3,
    "speculation_rows": 2,
}
"""A value for every option of the core, none its default."""


def test_the_defaults_are_the_cores() -> None:
    assert config_from_settings(Settings()) == SchedulerConfig()


def test_every_option_of_the_core_arrives() -> None:
    assert set(CHANGED) == NAMES - {"tenants"}
    config = config_from_settings(load_settings(CHANGED))
    assert {name: getattr(config, name) for name in CHANGED} == CHANGED
    for name, value in CHANGED.items():
        assert getattr(SchedulerConfig(), name) != value, name


def test_whatever_may_change_at_run_time_is_an_option() -> None:
    assert set(CHANGEABLE) <= set(Settings.model_fields)
    assert set(CHANGEABLE) <= NAMES


@pytest.mark.parametrize("field", POLICY_NAMES)
def test_the_options_know_every_policy_and_no_other(field: str) -> None:
    assert get_args(Settings.model_fields[field].annotation) == tuple(POLICY_NAMES[field])


def test_tenants_come_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(
        "acme: {guaranteed_share: 0.25, most_share: 0.5, weight: 2, pin_share: 0.1}\nother: {}\n"
    )
    config = config_from_settings(Settings(tenants=file))
    assert config.tenants == {
        "acme": TenantPolicy(guaranteed_share=0.25, most_share=0.5, weight=2.0, pin_share=0.1),
        "other": TenantPolicy(),
    }


def test_a_wrong_file_of_tenants_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text("acme: {most_share: 2}")
    with pytest.raises(InvalidRequest, match=r"tenants: .*tenants\.yaml: acme\.most_share"):
        config_from_settings(Settings(tenants=file))


@pytest.mark.parametrize(
    "flags", [{name: 1.5} for name in ("high_watermark", "pin_budget", "length_quantile")]
)
def test_what_the_core_would_refuse_is_refused_at_load(flags: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_settings(flags)
    assert {caught.value.field} == set(flags)
