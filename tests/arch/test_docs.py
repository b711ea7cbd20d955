"""Every file says what it is for, every package why it is so, and none where it was written."""

import ast
import re
import socket
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from tests.arch.source import GENERATED, PACKAGES, ROOT, Module, hold, snippet

SYSTEM_FOLDERS = {
    "app",
    "bin",
    "data",
    "dev",
    "etc",
    "models",
    "opt",
    "proc",
    "run",
    "sys",
    "usr",
    "var",
}
"""First parts of absolute paths that mean the same on every machine, or in our images."""

HTTP_PATHS = {"v1", "preheat", "health", "metrics", "components"}
"""The last one is the place of schemas in a description of HTTP."""

HOSTS = {
    "127.0.0.1",
    "apache.org",
    "github.com",
    "huggingface.co",
    "keepachangelog.com",
    "localhost",
    "opencollective.com",
    "semver.org",
    "www.apache.org",
}
"""Hosts that a text or a command may name; none of them is asked for anything by the tests."""

NOWHERE = {"no", "nowhere"}
"""First parts of paths that a test makes up because nothing is there."""

_ABSOLUTE = re.compile(r"(?<![\w.~$}{/:<>*)\]-])/([a-z_]+)/[\w.]")
_URL = re.compile(r"\b(?:https?|git|ssh)://([\w.-]+)|\bfile:///([\w.-]+)")
_SKIPPED_FOLDERS = {
    ".clients",
    ".git",
    ".json-schema-suite",
    ".node",
    "__pycache__",
    "build",
    "dist",
    "node_modules",
}
_TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".proto", ".json", ".jsonl", ".cfg", ""}


def modules_have_docstrings(module: Module) -> list[str]:
    """A file opens by saying what it is for and what it is not."""
    if not module.tree.body or ast.get_docstring(module.tree):
        return []
    return ["has no docstring"]


def texts() -> Iterator[tuple[str, str]]:
    """Every text file of the project that is not generated, by its path from the root."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if any(part in _SKIPPED_FOLDERS or part.startswith(".venv") for part in parts):
            continue
        if any(part.endswith((".egg-info", "_cache")) or part == ".hypothesis" for part in parts):
            continue
        if path.is_file() and path.suffix in _TEXT and not path.name.endswith(GENERATED):
            yield str(Path(*parts)), path.read_text(encoding="utf-8")


def names_of_a_machine(text: str) -> list[str]:
    """Absolute paths and hosts that exist on one machine only."""
    found = [
        f"names the path {match[0]}…"
        for match in _ABSOLUTE.finditer(text)
        if match[1] not in SYSTEM_FOLDERS | HTTP_PATHS | NOWHERE
    ]
    found += [
        f"names the host {match[1] or match[2]}"
        for match in _URL.finditer(text)
        if (match[1] or match[2]) not in HOSTS and not match[1].endswith((".example", "_svc"))
    ]
    if str(ROOT) in text:
        found.append("names the folder of this checkout")
    if len(host := socket.gethostname()) >= 6 and re.search(rf"\b{re.escape(host)}\b", text):
        found.append("names this machine")
    return found


def test_modules_have_docstrings() -> None:
    assert modules_have_docstrings(snippet("radixd.x", "x = 1"))
    assert not modules_have_docstrings(snippet("radixd.x", '"""Says why."""\nx = 1'))
    assert not modules_have_docstrings(snippet("radixd.x", ""))
    hold(modules_have_docstrings, tests=True)


def test_packages_explain_themselves() -> None:
    missing = [package for package in PACKAGES if not (ROOT / package / "DESIGN.md").is_file()]
    assert not missing


def absent_from_map(files: list[str], text: str) -> list[str]:
    """Files that a map does not name, nor means by a name such as `bodies_*`."""
    words = set(re.findall(r"[\w*]+", text))
    families = [word for word in words if len(word) > 2 and word.endswith("*")]
    return [
        file
        for file in files
        if file not in words and not any(fnmatchcase(file, family) for family in families)
    ]


def maps() -> Iterator[tuple[str, list[str], str]]:
    """Of each package of more than three files: its name, its files, and where they are mapped."""
    for top in PACKAGES:
        for init in sorted((ROOT / top).rglob("__init__.py")):
            files = [
                path.stem
                for path in sorted(init.parent.glob("[!_]*.py"))
                if not path.name.endswith(GENERATED)
            ]
            package = init.parent.relative_to(ROOT)
            texts = [ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""]
            texts += [
                path.read_text(encoding="utf-8")
                for folder in (package, *package.parents[:-1])
                for path in sorted((ROOT / folder).glob("*.md"))
            ]
            if len(files) > 3:
                yield str(package), files, "\n".join(texts)


def test_every_file_stands_in_a_map() -> None:
    assert absent_from_map(["bodies", "bodies_chat", "sse"], "`bodies_*`: the rest; sse") == [
        "bodies"
    ]
    absent = [
        f"{package}: {file}"
        for package, files, text in maps()
        for file in absent_from_map(files, text)
    ]
    assert not absent, "\n" + "\n".join(absent)


def test_no_file_names_a_machine() -> None:
    home = "/".join(["", "home", "me", "radixd"])
    assert names_of_a_machine(f"see {home}/x.py")
    assert names_of_a_machine("pip install --index-url " + "http" + "://pypi.internal/simple")
    assert names_of_a_machine(f"cd {ROOT}")
    assert not names_of_a_machine("curl localhost:3000/v1/models # radixd.v1.AdminService/Preheat")
    complaints = [
        f"{path}: {text}"
        for path, body in texts()
        for text in names_of_a_machine(body)
        # Paths in an image's recipe lie in the image.
        if not (path.startswith("docker/") and text.startswith("names the path"))
    ]
    assert not complaints, "\n" + "\n".join(complaints)
