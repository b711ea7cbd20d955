"""Logits of every family's tiny random model against transformers in fp32, on torch and on the
interpreted kernels: a prompt in chunks, beside another, and decodes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from structlog.testing import capture_logs

from gpu_worker.backend_choice import BackendOptions
from gpu_worker.device import device_home
from gpu_worker.device.device_home import DeviceHome
from gpu_worker.folder_config import config_from_folder
from gpu_worker.loading import load_engine
from gpu_worker.model_engine import EngineLimits
from gpu_worker.weight_home import MatrixSource
from protos.errors import InvalidRequest, ModelError
from radixd.chassis.model_source import ModelSource
from tests.gpu_worker.backends import TORCH
from tests.gpu_worker.driver import Driver, Part
from tests.gpu_worker.family_models import FAMILIES, family_oracle, save_family
from tests.gpu_worker.random_models import RandomWeights
from tests.gpu_worker.tiny_models import random_tokens

KERNELS = BackendOptions(backend="triton", device="cpu")
TOLERANCE = 1e-4


def driver_of(source: ModelSource, options: BackendOptions) -> Driver:
    limits = EngineLimits(num_slots=256, max_rows=4, poison=True)
    return Driver(load_engine(source, limits, options))


def logits_of(oracle: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = oracle(torch.tensor([tokens])).logits[0]
        return found


def check(oracle: torch.nn.Module, driver: Driver, length: int, num_decodes: int) -> None:
    """Two chunks, the second beside another row's prompt, then decodes of both rows."""
    chunk, mate_length = length // 2, num_decodes + 5
    tokens, mate_tokens = random_tokens(length, seed=1), random_tokens(mate_length, seed=2)
    wanted, mate_wanted = logits_of(oracle, tokens), logits_of(oracle, mate_tokens)
    assert wanted.std() > 0.1
    row, mate = driver.open(0), driver.open(1)
    start, mate_start = length - num_decodes, mate_length - num_decodes
    driver.logits(Part(row, tokens[:chunk], samples=False))
    found = driver.logits(Part(row, tokens[chunk:start]), Part(mate, mate_tokens[:mate_start]))
    torch.testing.assert_close(
        found,
        torch.stack([wanted[start - 1], mate_wanted[mate_start - 1]]),
        atol=TOLERANCE,
        rtol=0,
    )
    for at in range(num_decodes):
        place, mate_place = start + at, mate_start + at
        found = driver.logits(
            Part(mate, mate_tokens[mate_place : mate_place + 1]),
            Part(row, tokens[place : place + 1]),
        )
        torch.testing.assert_close(
            found, torch.stack([mate_wanted[mate_place], wanted[place]]), atol=TOLERANCE, rtol=0
        )


def test_the_compiled_backend_leaves_what_is_no_llama_to_torch(tmp_path: Path) -> None:
    source = save_family(family_oracle("gemma2"), tmp_path)
    native = BackendOptions(backend="native", device="cpu")
    with pytest.raises(InvalidRequest, match="not sliding windows, another attention scale, soft"):
        driver_of(source, native)
    with capture_logs() as logs:
        driver_of(source, BackendOptions(device="cpu"))
    (line,) = (log for log in logs if log["event"] == "native_backend_unavailable")
    assert line["instead"] == "torch"
    assert "gelu_tanh gates" in line["reason"]


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_decoder_of_a_model_that_can_see(prefix: str, tmp_path: Path) -> None:
    oracle = family_oracle("gemma3", tie_word_embeddings=False)
    source = save_family(oracle, tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    head = tensors.pop("lm_head.weight")
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    renamed |= {"language_model.lm_head.weight": head, "vision_tower.x.weight": head.clone()}
    safetensors.torch.save_file(renamed, weights)
    config = tmp_path / "config.json"
    text = json.loads(config.read_text(encoding="utf-8"))
    outer = {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False}
    config.write_text(json.dumps(outer), encoding="utf-8")
    check(oracle, driver_of(source, TORCH), length=20, num_decodes=1)


def test_experts_in_blocks_are_refused(tmp_path: Path) -> None:
    source = save_family(family_oracle("qwen3_moe"), tmp_path)
    with pytest.raises(InvalidRequest, match="int8 of a mixture of experts"):
        driver_of(source, replace(KERNELS, weights="int8"))


def test_experts_of_odd_sizes_are_refused_on_kernels() -> None:
    source = MatrixSource(reader=RandomWeights(), name="mlp.experts.0.down_proj", shape=(6, 32))
    with pytest.raises(ModelError, match="experts of 6 inputs or outputs are not whole 16 bytes"):
        DeviceHome(torch.device("cpu"), torch.float32).experts("down", [[source]])


def test_parameters_of_experts_are_counted(tmp_path: Path) -> None:
    for family in ("qwen3_moe", "qwen3_moe_sparse", "gemma2"):
        oracle = family_oracle(family)
        source = save_family(oracle, tmp_path / family)
        wanted = sum(weight.numel() for weight in oracle.parameters() if weight.ndim > 1)
        assert config_from_folder(source.path).num_parameters == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    oracle = family_oracle(family)
    source = save_family(oracle, tmp_path)
    check(oracle, driver_of(source, TORCH), length=80, num_decodes=4)
    check(oracle, driver_of(source, KERNELS), length=20, num_decodes=1)


@pytest.mark.parametrize(
    ("hip", "major", "dtype", "stays"),
    [
        (None, 9, torch.bfloat16, True),
        (None, 10, torch.bfloat16, True),
        (None, 8, torch.bfloat16, False),
        (None, 12, torch.bfloat16, False),
        (None, 9, torch.float32, False),
        ("7.0", 9, torch.bfloat16, False),
    ],
)
def test_experts_are_recorded_where_torch_has_a_product_of_runs(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, major: int, dtype: torch.dtype, stays: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, 4))
    assert device_home.runs_stay_there(torch.device("cuda"), dtype) is stays
