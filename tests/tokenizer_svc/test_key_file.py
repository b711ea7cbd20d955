"""Keys that change while the server runs: new ones work, old ones stop, bad files do nothing."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from protos.errors import InvalidRequest, PermissionDenied, Unauthenticated
from radixd.chassis.file_watch import FileWatch
from radixd.chassis.tenants import key_digest, load_tenants
from tests.tokenizer_svc.client import wait_until
from tokenizer_svc.file_reloads import Reload, follow_files
from tokenizer_svc.front import SERVICE_NAMES
from tokenizer_svc.key_file import KeyFile
from tokenizer_svc.tenancy import ROLE_OF, Role

GENERATE = "/radixd.v1.InferenceService/Generate"
FLUSH = "/radixd.v1.AdminService/FlushCache"


def write(path: Path, **tenants: str) -> None:
    """One key a tenant; `admin` is an operator's. Replaced whole, as an editor does."""
    lines = [
        f"admin_keys: [{key_digest(key)}]"
        if name == "admin"
        else f"{name}: {{keys: [{key_digest(key)}]}}"
        for name, key in tenants.items()
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(lines))
    fresh.replace(path)


def tenant(keys: KeyFile, key: str, method: str = GENERATE) -> str:
    return keys.caller(method, [("authorization", f"Bearer {key}")]).tenant


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenants.yaml"


def test_the_newest_keys_count(path: Path):
    write(path, a="one", admin="root")
    keys = KeyFile(path, load_tenants(path))
    assert tenant(keys, "one") == "a"
    assert keys.caller(FLUSH, [("authorization", "Bearer root")]).is_admin
    write(path, b="two")
    assert tenant(keys, "one") == "a", "nobody has looked yet"
    keys.reload()
    assert tenant(keys, "two") == "b"
    for gone in ("one", "root"):
        with pytest.raises(Unauthenticated):
            tenant(keys, gone)
    with pytest.raises(PermissionDenied):
        tenant(keys, "two", FLUSH)


@pytest.mark.parametrize("text", ["", "a: 5", "a: {keys: [x]}", "a: {weight: 2}", "{", "\x00"])
def test_a_bad_file_changes_nothing(path: Path, text: str):
    write(path, a="one")
    keys = KeyFile(path, load_tenants(path))
    path.write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        keys.reload()
    assert caught.value.field == "tenants"
    assert str(path) in caught.value.message
    assert tenant(keys, "one") == "a"
    path.unlink()
    with pytest.raises(InvalidRequest):
        keys.reload()
    assert tenant(keys, "one") == "a"


def test_a_server_without_keys_can_be_closed(path: Path):
    path.write_text("a: {weight: 2}")
    keys = KeyFile(path, load_tenants(path))
    assert keys.caller(GENERATE, []).is_admin
    write(path, a="one")
    keys.reload()
    with pytest.raises(Unauthenticated):
        keys.caller(GENERATE, [])


def test_every_public_method_has_a_role():
    pool = descriptor_pool.Default()
    methods = {
        f"/{name}/{method.name}"
        for name in SERVICE_NAMES
        for method in pool.FindServiceByName(name).methods
    }
    assert set(ROLE_OF) == methods
    for_admins = {name.rpartition("/")[2] for name, role in ROLE_OF.items() if role is Role.ADMIN}
    assert for_admins == {"FlushCache", "DumpTree", "SetPolicy"}


def test_a_method_that_no_role_names_takes_an_admins(path: Path):
    write(path, a="one", admin="root")
    keys = KeyFile(path, load_tenants(path))
    assert set(ROLE_OF.values()) == set(Role)
    with pytest.raises(PermissionDenied):
        tenant(keys, "one", "/radixd.v1.AdminService/OfTomorrow")
    assert tenant(keys, "root", "/radixd.v1.AdminService/OfTomorrow") == ""


def test_what_counts_as_a_change(tmp_path: Path):
    path, link = tmp_path / "a", tmp_path / "link"
    path.write_text("1")
    link.symlink_to(path)
    watch = FileWatch([link])
    assert not watch.has_changed()
    (tmp_path / "b").write_text("1")
    link.unlink()
    link.symlink_to(tmp_path / "b")
    assert watch.has_changed()
    assert not watch.has_changed()
    link.unlink()
    assert watch.has_changed()


def test_a_file_with_the_time_and_size_of_before_counts_as_changed(tmp_path: Path):
    path = tmp_path / "a"
    path.write_text("1")
    watch, before = FileWatch([path]), path.stat()
    time.sleep(0.02)  # the clock of the file system is a coarse one
    path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert watch.has_changed()
    time.sleep(0.02)
    path.chmod(0o600)
    assert watch.has_changed(), "it may be readable now"
    assert not watch.has_changed()


async def test_what_changed_before_the_first_look_is_read(
    path: Path, capsys: pytest.CaptureFixture[str]
):
    """A key that goes while the server starts."""
    write(path, a="one")
    keys = KeyFile(path, load_tenants(path))
    write(path, b="two")
    reload = Reload(option="tenants", paths=(path,), read=keys.reload)
    following = asyncio.create_task(follow_files([reload], every_s=0.01))

    def has_read_it() -> bool:
        try:
            return tenant(keys, "two") == "b"
        except Unauthenticated:
            return False

    await wait_until(has_read_it)
    with pytest.raises(Unauthenticated):
        tenant(keys, "one")
    assert "settings_file" not in capsys.readouterr().out
    following.cancel()


async def test_changes_are_found_and_faults_are_logged(
    path: Path, capsys: pytest.CaptureFixture[str]
):
    write(path, a="one")
    keys = KeyFile(path, load_tenants(path))
    reload = Reload(option="tenants", paths=(path,), read=keys.reload)
    following = asyncio.create_task(follow_files([reload], every_s=0.01))
    await asyncio.sleep(0.05)
    path.write_text("nonsense: 5")
    said = ""

    def has_said(event: str) -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return event in said

    await wait_until(lambda: has_said("settings_file_unusable"))
    assert tenant(keys, "one") == "a"
    write(path, b="two")
    await wait_until(lambda: has_said("settings_file_reloaded"))
    assert tenant(keys, "two") == "b"
    assert said.count("settings_file_unusable") == 1, "once, not every time it looks"
    following.cancel()
