"""The Dockerfile and compose.yaml, read as text: what each image holds and may do."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from radixd.chassis.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker" / "compose.yaml"
MODULES = {"front": "tokenizer_svc", "scheduler": "scheduler_svc", "worker": "gpu_worker"}
USER = "10001:10001"


def stages() -> dict[str, list[str]]:
    """Instructions by stage, continued lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("FROM "):
            name = line.split(" AS ")[1]
            found[name] = []
        if line:
            found[name].append(line)
    return found


def lineage(name: str) -> list[str]:
    """Instructions of a stage and of the stages it stands on, the nearest first."""
    found = stages()
    lines = []
    while name in found:
        lines += found[name]
        name = found[name][0].split()[1]
    return lines


def compose() -> dict[str, Any]:
    loaded = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return dict(loaded)


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    yield from compose()["services"].items()


@pytest.fixture
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_target_a_service() -> None:
    for target, module in MODULES.items():
        assert f'CMD ["python", "-m", "{module}"]' in stages()[target]
        assert compose()["services"][target]["build"]["target"] == target


def test_only_the_worker_installs_torch() -> None:
    installs = {target: "\n".join(lineage(target)) for target in MODULES}
    for target, text in installs.items():
        holds_torch = "torch==" in text or "[worker]" in text or "[all]" in text
        assert holds_torch == (target == "worker"), target


def test_the_worker_gets_its_library_from_a_stage_with_a_compiler() -> None:
    native, worker = stages()["native"], stages()["worker"]
    assert native[0] == "FROM ${COMPILER_IMAGE} AS native"
    (built,) = re.findall(
        r"XDG_CACHE_HOME=(\S+) python -m gpu_worker.native.build$", "\n".join(native)
    )
    (found,) = re.findall(r"XDG_CACHE_HOME=(\S+)", "\n".join(worker))
    folder = "radixd/native"  # of the cache
    assert f"COPY --from=native {built}/{folder} {found}/{folder}" in worker


def test_no_image_holds_a_compiler() -> None:
    assert "COMPILER_IMAGE" in "\n".join(lineage("native"))
    for target in MODULES:
        assert "COMPILER_IMAGE" not in "\n".join(lineage(target))


def test_what_was_compiled_runs_on_the_system_of_the_images() -> None:
    """Of one release, as a library of a newer one may not load."""
    defaults = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)", DOCKERFILE.read_text(), re.MULTILINE))
    assert defaults["COMPILER_IMAGE"] == defaults["PYTHON_IMAGE"].replace("-slim-", "-")
    for service in ("front", "scheduler", "worker"):
        arguments = compose()["services"][service]["build"]["args"]
        for name, image in defaults.items():
            assert arguments[name] == f"${{{name}:-{image}}}"


def test_torch_is_the_one_of_the_project(project: dict[str, Any]) -> None:
    (pinned,) = (
        one for one in project["optional-dependencies"]["worker"] if one.startswith("torch==")
    )
    assert f" {pinned}" in "\n".join(stages()["worker"])


def test_everything_fetched_by_name_is_pinned() -> None:
    for lines in stages().values():
        for line in lines:
            if not line.startswith("RUN"):
                continue
            assert "apt-get" not in line
            for command in re.findall(r"pip install ([^&]*)", line):
                assert "--no-deps" in command or "-c /constraints.txt" in command, line
                optional = r"\$\{[A-Z_]+:\+[^{}]*(\{[A-Z_]+\}\S*)?\}"
                wanted = re.sub(rf"{optional}|-c \S+", "", command).split()
                names = [w for w in wanted if not w.startswith(("-", '"$(ls', "/wheels"))]
                assert all("==" in n or n.endswith((')"', ']"')) for n in names), line


def test_the_base_image_has_a_version_and_no_frontend_is_fetched() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert "ARG PYTHON_IMAGE=python:3.11-slim-bookworm" in text
    assert "# syntax=" not in text
    assert ":latest" not in text + COMPOSE.read_text(encoding="utf-8")


@pytest.mark.parametrize("target", MODULES)
def test_images_run_as_a_numbered_user_and_check_their_health(target: str) -> None:
    lines = stages()[target]
    assert f"USER {USER}" in lines
    (check,) = (line for line in lines if line.startswith("HEALTHCHECK"))
    assert '["python", "-m", "radixd.chassis.health_probe", ' in check
    start = next(n for n, line in enumerate(lines) if line.startswith("USER"))
    assert not any(line.startswith("RUN") for line in lines[start:])


def test_the_images_hold_every_package(project: dict[str, Any]) -> None:
    copied = {line.split()[1] for line in stages()["wheel"] if line.startswith("COPY")}
    ignored = (DOCKERFILE.with_name("Dockerfile.dockerignore")).read_text(encoding="utf-8")
    for package in ("protos", "radixd", "kernels", *MODULES.values()):
        assert package in copied
        assert f"!{package}\n" in ignored
    for file in ("pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]):
        assert f"!{file}\n" in ignored


def test_variables_are_settings() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8") + COMPOSE.read_text(encoding="utf-8")
    names = {name.lower() for name in re.findall(r"\bRADIXD_([A-Z_]+)\s*[=:]", text)}
    assert names
    assert names <= set(Settings.model_fields)


def test_containers_may_do_nothing_they_need_not() -> None:
    # field case 140: no shared memory, a socket folder of its own, a root that cannot be written.
    for name, service in services():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "shm_size", "ipc", "pid", "network_mode", "user"} & set(service)


def test_only_the_public_port_is_published_and_on_the_loopback() -> None:
    published = {name: service["ports"] for name, service in services() if "ports" in service}
    assert published == {
        "front": [
            "127.0.0.1:${RADIXD_PORT:-50051}:50051",
            "127.0.0.1:${RADIXD_HTTP_PORT:-3000}:3000",
        ]
    }
    assert compose()["networks"]["backend"] == {"internal": True}
    for name, service in services():
        assert ("public" in service["networks"]) == (name == "front")


def test_the_metrics_port_is_fixed_and_stays_in_the_closed_network() -> None:
    port = Settings.model_fields["metrics_port"].default
    lines = "\n".join(stages()["scheduler"])
    assert f"RADIXD_METRICS_PORT={port}" in lines
    assert re.search(rf"^EXPOSE .*\b{port}\b", lines, re.MULTILINE)
    # An internal network has no way to publish; a second one would open the scheduler's own port.
    assert compose()["services"]["scheduler"]["networks"] == ["backend"]
    assert f"scheduler:{port}" in COMPOSE.read_text(encoding="utf-8")


def test_the_socket_lies_in_a_private_volume() -> None:
    options = compose()["volumes"]["ipc"]["driver_opts"]
    assert (options["type"], options["device"]) == ("tmpfs", "tmpfs")
    assert {"uid=10001", "gid=10001", "mode=0700"} <= set(options["o"].split(","))
    mounts = {name: service.get("volumes", []) for name, service in services()}
    assert mounts == {
        "scheduler": ["ipc:/run/radixd"],
        "worker": ["ipc:/run/radixd"],
        "front": [],
    }
    for target in ("scheduler", "worker"):
        assert any("RADIXD_RUN_DIR=/run/radixd" in line for line in stages()[target])


def test_services_start_when_what_they_need_is_healthy() -> None:
    healthy = {"scheduler": {"condition": "service_healthy"}}
    needs = {name: service.get("depends_on", {}) for name, service in services()}
    assert needs == {"scheduler": {}, "worker": healthy, "front": healthy}


def test_images_have_the_version_of_the_project(project: dict[str, Any]) -> None:
    for name, service in services():
        assert service["image"] == f"radixd/{name}:{project['version']}"


def test_what_serves_without_keys_is_published_on_the_loopback_alone() -> None:
    assert "RADIXD_HOST=0.0.0.0" in "\n".join(stages()["front"])
    assert "RADIXD_INSECURE" not in re.sub(r"#.*", "", DOCKERFILE.read_text(encoding="utf-8"))
    front = compose()["services"]["front"]
    assert front["environment"]["RADIXD_INSECURE"] == "${RADIXD_INSECURE:-true}"
    assert all(port.startswith("127.0.0.1:") for port in front["ports"])
