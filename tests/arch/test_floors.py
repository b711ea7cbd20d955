"""Who may import whom: down the floors only, and each heavy library in its own rooms."""

import sys

from tests.arch.source import PACKAGES, Module, hold, imports, snippet, within

PURE = (
    "__future__",
    "abc",
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "types",
    "typing",
)
"""The part of the standard library that knows no clock, no randomness and no outside world."""

NUMPY_PAYS = (
    "scheduler_svc.core.page_pool",
    "scheduler_svc.core.free_runs",
    "scheduler_svc.core.finish_order",
    "scheduler_svc.core.stems",
)
"""Modules of the core that may use numpy, because it was measured to pay there."""

MAY_IMPORT = {
    "protos": ("protos",),
    "kernels": ("kernels",),
    "radixd.chassis": ("protos", "radixd.chassis"),
    "scheduler_svc": ("protos", "radixd.chassis", "scheduler_svc"),
    "tokenizer_svc": ("protos", "radixd.chassis", "tokenizer_svc"),
    "gpu_worker": ("protos", "radixd.chassis", "kernels", "gpu_worker"),
    "radixd": ("protos", "radixd"),
}
"""Of our own packages.  The command line starts services as processes and imports none."""

ONLY_IN = {
    "torch": ("gpu_worker", "kernels"),
    "triton": ("gpu_worker", "kernels"),
    "transformers": ("tokenizer_svc", "gpu_worker"),
    "tokenizers": ("tokenizer_svc", "gpu_worker"),
    "safetensors": ("gpu_worker",),
    "zmq": ("radixd.chassis.channel",),
    "httpx2": ("radixd.bench",),
    "prometheus_client": (
        "scheduler_svc.metrics",
        "scheduler_svc.metrics_server",
        "scheduler_svc.server",
        "tokenizer_svc.http.metrics",
    ),
    "starlette": ("tokenizer_svc.http",),
    "uvicorn": ("tokenizer_svc.http",),
    "kernels": ("gpu_worker.device", "kernels"),
}
"""Libraries that cost memory, start-up time or a second place to make a known mistake."""

GRPC = ("grpc", "grpc_health", "grpc_reflection", "grpc_status", "radixd.chassis.grpc_server")


def floors(module: Module) -> list[str]:
    """Our packages import only what lies below them."""
    for package, allowed in MAY_IMPORT.items():
        if within(module.name, package):
            return [
                f"may not import {used}"
                for used in imports(module)
                if within(used, *PACKAGES) and not within(used, *allowed)
            ]
    return []


def core_is_pure(module: Module) -> list[str]:
    """The core and the plan import themselves, the plan, and the pure part of Python."""
    if not within(module.name, "scheduler_svc.core", "protos.plan"):
        return []
    allowed = (*PURE, "protos.plan", "scheduler_svc.core")
    if module.name in NUMPY_PAYS:
        allowed = (*allowed, "numpy")
    return [f"may not import {used}" for used in imports(module) if not within(used, *allowed)]


def libraries_in_their_rooms(module: Module) -> list[str]:
    """A library of ONLY_IN is imported only where it may be."""
    return [
        f"may not import {used}"
        for used in imports(module)
        for library, rooms in ONLY_IN.items()
        if within(used, library) and not within(module.name, *rooms)
    ]


def worker_without_grpc(module: Module) -> list[str]:
    """The worker speaks the plan and nothing else."""
    if not within(module.name, "gpu_worker"):
        return []
    return [
        f"may not import {used}"
        for used in imports(module)
        if within(used, *GRPC) or "_pb2_grpc" in used
    ]


def imports_are_literal(module: Module) -> list[str]:
    """A module computed at run time would pass under every rule here."""
    return ["imports a computed name"] if "?" in imports(module) else []


def test_imports_go_down_the_floors() -> None:
    assert floors(snippet("protos.plan", "import radixd.chassis"))
    assert floors(snippet("gpu_worker.model", "from scheduler_svc.core import tree"))
    assert floors(snippet("tokenizer_svc.app", "import radixd.cli.app"))
    assert floors(snippet("radixd.chassis.log", "def f():\n    from radixd.cli import app"))
    assert floors(snippet("scheduler_svc.shell", "import importlib\nimport_module('gpu_worker')"))
    assert floors(snippet("radixd.chassis.log", "from ..cli import app"))
    hold(floors)


def test_core_imports_nothing_of_the_world() -> None:
    assert core_is_pure(snippet("scheduler_svc.core.tree", "import time"))
    assert core_is_pure(snippet("scheduler_svc.core.tree", "from random import choice"))
    assert core_is_pure(snippet("scheduler_svc.core.tree", "from protos.wire import encode"))
    assert core_is_pure(snippet("protos.plan", "import numpy as np"))
    assert not core_is_pure(snippet("scheduler_svc.core.tree", "from .slots import SlotBooks"))
    hold(core_is_pure)


def test_libraries_stay_in_their_rooms() -> None:
    assert libraries_in_their_rooms(snippet("scheduler_svc.loop", "import torch.nn"))
    assert libraries_in_their_rooms(snippet("radixd.bench.run", "import transformers"))
    assert libraries_in_their_rooms(snippet("gpu_worker.link", "import zmq.asyncio"))
    assert libraries_in_their_rooms(snippet("gpu_worker.model", "from kernels import rope"))
    assert libraries_in_their_rooms(
        snippet("tokenizer_svc.x", "from prometheus_client import Gauge")
    )
    assert not libraries_in_their_rooms(snippet("gpu_worker.device.model", "import kernels.rope"))
    hold(libraries_in_their_rooms)


def test_worker_imports_no_grpc() -> None:
    assert worker_without_grpc(snippet("gpu_worker.app", "from grpc import aio"))
    assert worker_without_grpc(
        snippet("gpu_worker.app", "from protos.radixd.v1 import admin_pb2_grpc")
    )
    hold(worker_without_grpc)


def test_imports_are_literal() -> None:
    assert imports_are_literal(snippet("radixd.x", "import_module(name)"))
    hold(imports_are_literal)


def test_pure_part_is_the_standard_library() -> None:
    assert set(PURE) <= sys.stdlib_module_names | {"__future__"}
