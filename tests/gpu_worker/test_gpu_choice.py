"""What the options come to on a GPU, and what is said where its memory does not do; no GPU here."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker import backend_choice, loading
from gpu_worker.backend_choice import BackendOptions, make_backend
from gpu_worker.device import device_backend
from gpu_worker.device.device_backend import DeviceOptions
from gpu_worker.device.gpu import Gpu
from gpu_worker.device.pool_size import NoRoom, PoolFit
from gpu_worker.model_engine import EngineLimits
from gpu_worker.open_model import OpenModel, open_model
from protos.errors import ModelError
from radixd.chassis.settings import Settings
from tests.gpu_worker.tiny_models import make_oracle, save

LIMITS = EngineLimits(num_slots=640, max_rows=7, max_length=100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenModel]:
    with open_model(save(make_oracle(), tmp_path_factory.mktemp("tiny"))) as opened:
        yield opened


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DeviceOptions]:
    """What is asked of the backend on a machine with a GPU; it is not made."""
    found: list[DeviceOptions] = []

    def backend(_config: object, _reader: object, options: DeviceOptions) -> Any:
        found.append(options)
        return SimpleNamespace(name="on the GPU")

    h200 = Gpu(name="cuda: NVIDIA H200", total_bytes=150 << 30)
    monkeypatch.setattr(backend_choice, "find_gpu", lambda: h200)
    monkeypatch.setattr(device_backend, "DeviceBackend", backend)
    return found


@pytest.mark.parametrize(
    ("options", "dtype", "blocks", "kv_kind"),
    [
        (BackendOptions(weights="auto"), torch.bfloat16, None, "none"),
        (BackendOptions(weights="auto", kv_dtype="fp32"), torch.float32, None, "none"),
        (BackendOptions(weights="fp32"), torch.float32, None, "none"),
        (BackendOptions(weights="bf16", kv_dtype="bf16"), torch.bfloat16, None, "none"),
        (BackendOptions(weights="int8", kv_dtype="fp8"), torch.bfloat16, "int8", "fp8"),
        (BackendOptions(weights="int4", kv_dtype="int8"), torch.bfloat16, "int4", "int8"),
        (BackendOptions(weights="fp32", kv_dtype="int8"), torch.float32, None, "int8"),
    ],
)
def test_precision(
    options: BackendOptions, dtype: torch.dtype, blocks: str | None, kv_kind: str,
    model: OpenModel, asked: list[DeviceOptions],
) -> None:  # fmt: skip
    assert make_backend(model, LIMITS, options).name == "on the GPU"
    (wanted,) = asked
    assert (wanted.dtype, wanted.blocks, wanted.kv_kind) == (dtype, blocks, kv_kind)
    assert (wanted.device, wanted.device_name) == ("cuda", "cuda: NVIDIA H200")
    assert (wanted.num_slots, wanted.max_length, wanted.fit) == (640, 100, None)
    assert not wanted.deterministic


def test_pool_and_mode(model: OpenModel, asked: list[DeviceOptions]) -> None:
    options = BackendOptions(
        fit_pool=True, memory_fraction=0.5, max_batch_tokens=99, max_draws=9, deterministic=True
    )
    make_backend(model, LIMITS, options)
    assert asked[0].fit == PoolFit(memory_fraction=0.5, max_tokens=99, max_rows=7, max_draws=9)
    assert asked[0].deterministic


@pytest.mark.parametrize(
    ("options", "num_draws"),
    [
        ({"max_running": 50}, 50),
        ({"max_running": 8, "speculation_rows": 4, "max_drafts": 8}, 36),
        ({"max_running": 8, "speculation_rows": 4, "max_drafts": 8, "speculation": "off"}, 8),
    ],
)
def test_rows_that_guess_draw_more_than_once(
    options: dict[str, Any], num_draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(loading, "resolve_model", str)
    monkeypatch.setattr(loading, "load_engine", lambda *given: found.append(given[2].max_draws))
    loading.engine_for(Settings(**options))
    assert found == [num_draws]


@pytest.mark.parametrize(
    ("error", "fit_pool", "problem"),
    [
        (NoRoom("no room for a pool: figures"), True, "no room for a pool: figures"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"),
            True,
            "no memory for the weights and the largest step: CUDA out of memory. Tried",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"),
            False,
            "no memory for the weights and 640 slots: CUDA out of memory. Tried",
        ),
    ],
)
def test_memory_that_does_not_do(
    error: Exception, fit_pool: bool, problem: str, model: OpenModel,
    asked: list[DeviceOptions], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def backend(*_: object) -> None:
        raise error

    monkeypatch.setattr(device_backend, "DeviceBackend", backend)
    with pytest.raises(ModelError) as caught:
        make_backend(model, LIMITS, BackendOptions(fit_pool=fit_pool))
    assert str(caught.value) == f"{model.source.path}: {problem}"


def test_an_error_of_the_gpu_is_not_taken_for_lack_of_memory(
    model: OpenModel, asked: list[DeviceOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    def backend(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(device_backend, "DeviceBackend", backend)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        make_backend(model, LIMITS, BackendOptions())
