"""Which table of kernels computes: the fastest, or the one that is asked for by name."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_worker import backend_choice
from gpu_worker.backend_choice import BackendOptions
from gpu_worker.blocks import WeightFormat
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from gpu_worker.native.build import NativeUnavailable
from gpu_worker.native.library import NativeError, NativeModel, find_kernels
from gpu_worker.weight_choice import MeasuredModel
from protos.errors import InvalidRequest
from radixd.chassis.model_source import ModelSource
from radixd.chassis.setting_sources import load_settings
from tests.gpu_worker.backends import needs_compiler
from tests.gpu_worker.kernel_tables import NOT_HERE, TABLES
from tests.gpu_worker.native_calls import library, make_model, sizes
from tests.gpu_worker.tiny_models import make_oracle, save

pytestmark = needs_compiler

LIMITS = EngineLimits(num_slots=32, max_rows=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return save(make_oracle(), tmp_path_factory.mktemp("tiny"))


def loaded(model: ModelSource, **options: Any) -> dict[str, Any]:
    with capture_logs() as events:
        load_engine(model, LIMITS, BackendOptions(**options))
    (event,) = [event for event in events if event["event"] == "model_loaded"]
    return dict(event)


def test_the_fastest_that_the_processor_can_run() -> None:
    if not TABLES:
        with pytest.raises(NativeUnavailable, match="no kernels for this processor"):
            library()
        return
    assert find_kernels(library()) == TABLES[0]
    assert [
        name for name in (*TABLES, *NOT_HERE) if library().radixd_has_kernels(name.encode())
    ] == TABLES


@pytest.mark.parametrize("kernels", TABLES)
def test_a_table_by_its_name(kernels: str, model: ModelSource) -> None:
    assert find_kernels(library(), kernels) == kernels
    assert loaded(model, cpu_kernels=kernels)["backend"] == f"native {kernels}"


@pytest.mark.parametrize("name", [*NOT_HERE, "neon", "", "AVX2"])
def test_a_table_that_is_not_to_be_had(name: str, model: ModelSource) -> None:
    with pytest.raises(NativeUnavailable, match=f"cannot run the kernels {name}$"):
        find_kernels(library(), name)
    with pytest.raises(NativeError, match="no such kernels"):
        NativeModel(library(), sizes(), name)
    with pytest.raises(InvalidRequest, match=f"cannot run the kernels {name}$") as caught:
        loaded(model, cpu_kernels=name)
    assert "cpu_kernels" in str(caught.value)


def test_torch_has_no_kernels_to_choose(model: ModelSource) -> None:
    with pytest.raises(InvalidRequest, match="needs the native backend") as caught:
        loaded(model, backend="torch", cpu_kernels="avx2")
    assert "cpu_kernels" in str(caught.value)


def test_the_option_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXD_CPU_KERNELS", "avx2")
    assert load_settings({}).cpu_kernels == "avx2"
    monkeypatch.setenv("RADIXD_CPU_KERNELS", "sse")
    with pytest.raises(InvalidRequest, match="RADIXD_CPU_KERNELS") as caught:
        load_settings({})
    assert "cpu_kernels" in str(caught.value)


@pytest.mark.parametrize("kernels", TABLES)
def test_a_verdict_is_kept_for_each_table(
    kernels: str, model: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one table's arithmetic was found to be says nothing of another's."""
    asked: list[str] = []

    def choose(measured: MeasuredModel, *_: object) -> WeightFormat:
        asked.append(measured.backend)
        return "float32"

    monkeypatch.setattr(backend_choice, "choose_weights", choose)
    loaded(model, weights="auto", cpu_kernels=kernels)
    loaded(model, weights="auto")
    assert asked[0].split()[1] == kernels
    assert asked[1].split()[1] == TABLES[0]
    assert asked[0].split()[0] == asked[1].split()[0]


def test_models_on_different_tables_live_side_by_side() -> None:
    models = [make_model(kernels=name) for name in TABLES]
    assert len(models) == len(TABLES)
