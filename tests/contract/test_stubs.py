"""The committed stubs are what protoc makes of the committed schemas, byte for byte."""

from pathlib import Path

from grpc_tools import protoc

from tests.arch.source import ROOT
from tests.contract.schema import proto_paths

SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def generate(folder: Path) -> dict[str, bytes]:
    """Fresh stubs by path from the root; the command is that of `make protos`."""
    outputs = [f"--{plugin}_out={folder}" for plugin in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", "-I", str(ROOT), *outputs, *proto_paths()]) == 0
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.name.endswith(SUFFIXES)
    }


def test_stubs_have_not_drifted(tmp_path: Path) -> None:
    fresh = generate(tmp_path)
    kept = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for path in (ROOT / "protos").rglob("*")
        if path.name.endswith(SUFFIXES)
    }
    assert sorted(fresh) == sorted(kept)
    drifted = [path for path, data in fresh.items() if kept[path] != data]
    assert not drifted, "run `make protos`"


def test_stubs_import_from_the_root(tmp_path: Path) -> None:
    """No path surgery after generation: every import starts with `protos.` or a library."""
    for path, data in generate(tmp_path).items():
        for line in data.decode().splitlines():
            if line.startswith("from ") and "_pb2" in line:
                assert line.startswith(("from protos.", "from google.")), f"{path}: {line}"
