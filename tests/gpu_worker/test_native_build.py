"""How the compiled library comes to be, and what happens where it cannot."""

import os
import shutil
import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from gpu_worker.native import build
from gpu_worker.native.build import NativeUnavailable, built_library
from gpu_worker.native.library import open_library
from radixd.chassis.model_source import ModelSource
from tests.arch.source import ROOT
from tests.gpu_worker.backends import NATIVE, needs_compiler
from tests.gpu_worker.tiny_models import make_oracle, save

LIMITS = EngineLimits(num_slots=32, max_rows=2)

FAKE = """#!/bin/sh
echo "$*" >> {calls}
while [ $# -gt 1 ]; do
  [ "$1" = -o ] && echo built > "$2"
  shift
done
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return save(make_oracle(), tmp_path_factory.mktemp("tiny"))


def script(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)
    return path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that notes its calls and writes what it should write; gives the notes."""
    calls = tmp_path / "calls"
    compiler = script(tmp_path / "fake-c++", FAKE.format(calls=calls))
    monkeypatch.setenv("CXX", str(compiler))
    return calls


def reason() -> str:
    with pytest.raises(NativeUnavailable) as caught:
        built_library()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@needs_compiler
def test_the_second_start_runs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelSource
) -> None:
    calls = tmp_path / "calls"
    real = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))))
    wrapper = script(tmp_path / "c++", f'#!/bin/sh\necho "$*" >> {calls}\nexec {real} "$@" -O0\n')
    monkeypatch.setenv("CXX", f"{wrapper} -g0")
    engine = load_engine(model, LIMITS, NATIVE)
    assert engine.hello().weights == "float32"
    first = calls.read_text(encoding="utf-8")
    assert len(first.splitlines()) == 4  # three units and the link
    assert all(line.startswith("-g0 ") for line in first.splitlines())
    load_engine(model, LIMITS, NATIVE)
    assert calls.read_text(encoding="utf-8") == first
    assert open_library(built_library()).radixd_kernels() is not None


def test_what_was_built_needs_no_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image, whose compiler stayed in another stage."""
    bin = tmp_path / "bin"
    bin.mkdir()
    script(bin / "g++", FAKE.format(calls=tmp_path / "calls"))
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setattr(build, "_COMPILERS", ("g++",))
    path = built_library()
    assert path.is_relative_to(cache / "radixd" / "native")
    monkeypatch.setenv("PATH", "")
    assert built_library() == path


def test_the_key_follows_sources_flags_and_compiler(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [built_library()]
    assert built_library() == paths[0]
    sources = tmp_path / "src"
    shutil.copytree(build._SOURCES, sources)
    monkeypatch.setattr(build, "_SOURCES", sources)
    assert built_library() == paths[0]
    with (sources / "team.h").open("a", encoding="utf-8") as file:
        file.write("// changed\n")
    paths.append(built_library())
    (sources / "new.cpp").write_text("", encoding="utf-8")
    paths.append(built_library())
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-g"))
    paths.append(built_library())
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -O1")
    paths.append(built_library())
    assert len(set(paths)) == 5
    assert all(path.read_text(encoding="utf-8") == "built\n" for path in paths)
    assert len(fake.read_text(encoding="utf-8").splitlines()) == 5 * 4


def test_every_source_is_compiled_once(fake: Path) -> None:
    own = {path.name for path in build._SOURCES.glob("*.cpp")}
    path = built_library()
    lines = fake.read_text(encoding="utf-8").splitlines()
    for name, option in (("avx2", "-mavx2"), ("avx512", "-mavx512vnni")):
        (compiled_alone,) = [line for line in lines if f"kernels_{name}.cpp" in line]
        assert option in compiled_alone
    assert not [line for line in lines if "-mavx512" in line and "kernels_avx512.cpp" not in line]
    (rest,) = [line for line in lines if "portable.cpp" in line]
    assert "-mavx" not in rest
    units = build._units(path.parent)
    included = units[0][0].read_text(encoding="utf-8")
    assert {name for name in own if f'"{name}"' in included} == own - set(build._ISA_FLAGS)


def test_two_builds_at_once(fake: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        (path,) = set(pool.map(lambda _: built_library(), range(4)))
    assert path.read_text(encoding="utf-8") == "built\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["libradixd.so"]


@pytest.mark.parametrize("name", ["no-such-c++", "/nowhere/g++", "no-such-c++ -O2"])
def test_the_compiler_asked_for_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", name)
    assert reason() == f"no C++ compiler: {name}"


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert reason() == "no C++ compiler: c++, g++, clang++"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "#!/bin/sh\necho in x >&2; echo 'x.cpp:1: error: bad' >&2; exit 1\n",
            "x.cpp:1: error: bad",
        ),
        ("#!/bin/sh\nexit 3\n", "no message"),
        ("#!/bin/sh\nprintf 'error: \\377' >&2; exit 1\n", "failed: error: "),
        ("#!/nowhere/sh\n", "No such file or directory"),
        ("", "Exec format error"),
    ],
)
def test_a_compiler_that_fails(
    text: str, problem: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = script(tmp_path / "failing-c++", text)
    monkeypatch.setenv("CXX", str(failing))
    line = reason()
    assert line.startswith(str(failing))
    assert problem in line
    assert not list(cache.rglob("*.so"))
    assert not list(cache.rglob("tmp*"))


def test_a_compiler_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = script(tmp_path / "slow-c++", "#!/bin/sh\nexec sleep 20\n")
    monkeypatch.setenv("CXX", str(hanging))
    monkeypatch.setattr(build, "_MOST_SECONDS", 0.2)
    assert "took more than" in reason()


def test_a_cache_that_cannot_be_written(cache: Path, fake: Path) -> None:
    cache.write_text("a file where the folder should be", encoding="utf-8")
    assert str(cache) in reason()
    assert not fake.exists()


def test_sources_that_cannot_be_read(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "gone.h").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(build, "_SOURCES", sources)
    assert reason() == f"{sources / 'gone.h'}: No such file or directory"


def test_a_user_without_a_home(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert "home directory" in reason()


def test_ahead_of_time(cache: Path, fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main() == 0
    assert capsys.readouterr().err == f"native backend: {built_library()}\n"
    cache.rename(cache.with_name("moved"))
    cache.touch()
    assert build.main() == 1
    assert capsys.readouterr().err.startswith(f"native backend: {cache}")


def test_the_sources_are_part_of_an_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["gpu_worker.native"]
    sources = [path for path in build._SOURCES.rglob("*") if path.is_file()]
    assert len(sources) > 10
    for path in sources:
        assert any(path.match(pattern) for pattern in patterns), path
        assert not path.stat().st_mode & stat.S_IXUSR
