"""The file of tenants: what it gives, and what it refuses by file, tenant and field."""

import dataclasses
import hashlib
from pathlib import Path

import pytest

from protos.errors import InvalidRequest
from radixd.chassis.tenants import NO_TENANTS, TenantShares, load_tenants

ONE = hashlib.sha256(b"one").hexdigest()
TWO = hashlib.sha256("zwei-ü".encode()).hexdigest()


def write(folder: Path, text: str) -> Path:
    file = folder / "tenants.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_shares_and_keys_are_read(tmp_path: Path) -> None:
    text = f"""
acme:
  guaranteed_share: 0.25
  most_share: 0.5
  weight: 2
  pin_share: 0
  keys: [{ONE.upper()}, {TWO}]
other: {{}}
"""
    tenants = load_tenants(write(tmp_path, text))
    acme = TenantShares(guaranteed_share=0.25, most_share=0.5, weight=2.0, pin_share=0.0)
    assert dict(tenants.shares) == {"acme": acme, "other": TenantShares()}
    assert tenants.have_keys
    assert [tenants.named_by(key) for key in ("one", "zwei-ü", "One", "", ONE)] == [
        "acme",
        "acme",
        None,
        None,
        None,
    ]


def test_keys_of_operators_stand_beside_the_tenants(tmp_path: Path) -> None:
    text = f"admin_keys: [{ONE.upper()}, {TWO}]\nacme: {{keys: [{TWO}]}}"
    tenants = load_tenants(write(tmp_path, text))
    assert tenants.admin_key_digests == {ONE, TWO}
    assert list(tenants.shares) == ["acme"]
    assert [tenants.named_by(key) for key in ("one", "zwei-ü")] == [None, "acme"]
    only_operators = load_tenants(write(tmp_path, f"admin_keys: [{ONE}]"))
    assert only_operators.have_keys
    assert not only_operators.shares


def test_a_key_that_is_no_text_is_nobodys(tmp_path: Path) -> None:
    tenants = load_tenants(write(tmp_path, f"acme: {{keys: [{ONE}]}}"))
    assert [tenants.named_by(key) for key in ("one\udcff", "\ud800")] == [None, None]


def test_no_file_and_an_empty_file_are_nobody(tmp_path: Path) -> None:
    assert load_tenants(None) is NO_TENANTS
    assert load_tenants(write(tmp_path, "# none yet\n")) == NO_TENANTS
    assert not NO_TENANTS.have_keys


def test_the_value_cannot_be_changed(tmp_path: Path) -> None:
    tenants = load_tenants(write(tmp_path, "acme: {}"))
    with pytest.raises(TypeError):
        tenants.shares["acme"] = TenantShares()  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        tenants.shares = {}  # type: ignore[misc]


def test_ten_tenths_are_one_pool(tmp_path: Path) -> None:
    text = "\n".join(f"t{number}: {{guaranteed_share: 0.1}}" for number in range(10))
    assert len(load_tenants(write(tmp_path, text)).shares) == 10


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("acme: {guaranteed_share: 1.5}", "acme.guaranteed_share: "),
        ("acme: {guaranteed_share: .nan}", "acme.guaranteed_share: "),
        ("acme: {most_share: true}", "acme.most_share: "),
        ("acme: {most_share: '0.5'}", "acme.most_share: "),
        ("acme: {weight: 0}", "acme.weight: "),
        ("acme: {weight: .inf}", "acme.weight: "),
        ("acme: {pin_share: -0.1}", "acme.pin_share: "),
        ("acme: {wieght: 1}", "acme.wieght: "),
        ("acme: {keys: [abc]}", "acme.keys.0: "),
        (f"acme: {{keys: ['{ONE}\\n']}}", "acme.keys.0: "),
        (f"acme: {{keys: {ONE}}}", "acme.keys: "),
        ("acme: 5", "acme: "),
        ("acme:", "acme: "),
        ("- acme", "must be a mapping of tenants"),
        ("5: {}", "5: "),
        ("'': {}", "'': the name "),
        ("(others): {}", "'(others)': the name "),
        (f"'{'x' * 65}': {{}}", "the name takes 1 to 64"),
        ("acme: {guaranteed_share: 0.6, most_share: 0.5}", "acme.guaranteed_share: 0.6 is above"),
        ("a: {guaranteed_share: 0.6}\nb: {guaranteed_share: 0.5}", "all together are 1.1"),
        (f"a: {{keys: [{ONE}]}}\nb: {{keys: [{ONE.upper()}]}}", "b.keys.0: is a key of a already"),
        ("acme: {}\nacme: {}", "the key 'acme' comes twice"),
        ("acme: {weight: 1, weight: 2}", "the key 'weight' comes twice"),
        ("acme: [", "line 1"),
        ("admin_keys: {}", "admin_keys: must be a list"),
        ("admin_keys: [abc]", "admin_keys.0: "),
        (f"admin_keys: [{ONE}, {ONE.upper()}]", "admin_keys: one of them comes twice"),
        ("acme: {weight: 2026-99-99}", "month must be in 1..12"),
    ],
)
def test_what_cannot_be_is_named_with_its_file(tmp_path: Path, text: str, problem: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        load_tenants(file)
    assert caught.value.field == "tenants"
    assert caught.value.message.startswith(f"{file}: ")
    assert problem in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"tenants: .*gone\.yaml: No such file"):
        load_tenants(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    "text", ['acme: {keys: ["sk-raw', "acme: {keys: [sk-raw: }", "sk-raw: - a"]
)
def test_a_line_that_may_hold_a_key_is_not_quoted(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_tenants(write(tmp_path, text))
    assert "sk-raw" not in caught.value.message
    assert "at line 1, column " in caught.value.message
