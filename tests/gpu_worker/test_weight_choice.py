"""What `--weights auto` takes, and what it remembers, on models that are tables of logits."""

import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu_worker import weight_choice
from gpu_worker.blocks import FloatArray, WeightFormat
from gpu_worker.weight_choice import NUM_TOKENS, Forward, MeasuredModel, choose_weights

MODEL = MeasuredModel(
    fingerprint="f", backend="native avx2", num_parameters=10_000, int4_blocks=True
)
VOCAB = 50
WITHIN, BEYOND = 0.005, 0.02


class Table:
    """A forward pass: random logits, the right token made a little less likely by `worse`."""

    def __init__(self, worse: float) -> None:
        self._worse = worse

    def __call__(self, token_ids: Sequence[int]) -> FloatArray:
        logits = np.random.default_rng(1).normal(size=(len(token_ids), VOCAB)).astype(np.float32)
        # By this much in -log p: the others gain what the right one loses.
        for at, token in enumerate(token_ids[1:]):
            p = np.exp(logits[at] - np.logaddexp.reduce(logits[at]))
            lower = p[token] / (1 + self._worse)
            logits[at, token] += np.log(lower / (1 - lower) * (1 - p[token]) / p[token])
        return logits


class Models:
    """Builds them, and remembers which were asked for and which still live."""

    def __init__(self, **worse: float) -> None:
        self._worse = {"float32": 0.0, **worse}
        self.built: list[str] = []
        self._alive: list[weakref.ref[Table]] = []
        self.num_texts = 0

    def build(self, weights: WeightFormat) -> Forward:
        assert not [table for table in self._alive if table() is not None]
        self.built.append(weights)
        table = Table(self._worse[weights])
        self._alive.append(weakref.ref(table))
        return table

    def text(self) -> list[int]:
        self.num_texts += 1
        return np.random.default_rng(2).integers(0, VOCAB, 500).tolist()


def choose(models: Models, folder: Path, model: MeasuredModel = MODEL) -> WeightFormat:
    return choose_weights(model, models.text, models.build, folder)


@pytest.mark.parametrize(
    ("int4", "int8", "chosen", "built"),
    [
        (WITHIN, WITHIN, "int4", ["float32", "int4"]),
        (-0.5, WITHIN, "int4", ["float32", "int4"]),
        (BEYOND, WITHIN, "int8", ["float32", "int4", "int8"]),
        (BEYOND, BEYOND, "float32", ["float32", "int4", "int8"]),
        (float("nan"), WITHIN, "int8", ["float32", "int4", "int8"]),
    ],
)
def test_the_first_within_the_gate(
    int4: float, int8: float, chosen: WeightFormat, built: list[str], tmp_path: Path
) -> None:
    models = Models(int4=int4, int8=int8)
    assert choose(models, tmp_path) == chosen
    assert models.built == built


def test_figures_are_kept_and_believed(tmp_path: Path) -> None:
    models = Models(int4=BEYOND, int8=WITHIN)
    folder = tmp_path / "not" / "there yet"
    assert choose(models, folder) == "int8"
    (path,) = folder.iterdir()
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert (kept["weights"], kept["num_tokens"]) == ("int8", NUM_TOKENS)
    perplexity = {name: figures["perplexity"] for name, figures in kept["measured"].items()}
    assert perplexity["int4"] == pytest.approx(perplexity["float32"] * (1 + BEYOND), rel=1e-4)
    assert perplexity["int8"] == pytest.approx(perplexity["float32"] * (1 + WITHIN), rel=1e-4)
    others = Models(int4=WITHIN, int8=WITHIN)
    assert choose(others, folder) == "int8"
    assert (others.built, others.num_texts) == ([], 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: {"fingerprint": "g"},
        lambda patch: {"backend": "native avx512"},
        lambda patch: patch.setattr(weight_choice, "TEXT", "Another text.") or {},
        lambda patch: patch.setattr(weight_choice, "NUM_TOKENS", 100) or {},
    ],
)
def test_anything_else_is_measured_anew(
    change: Callable[[pytest.MonkeyPatch], dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose(Models(int4=WITHIN), tmp_path)
    other = replace(MODEL, **change(monkeypatch))
    models = Models(int4=BEYOND, int8=WITHIN)
    assert choose(models, tmp_path, other) == "int8"
    assert models.built == ["float32", "int4", "int8"]


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", "{}", '{"weights": "int4"}', "[" * 100_000,
     '{"weights": "int4", "num_tokens": 9, "measured": {}}',
     '{"weights": "int4", "num_tokens": 9, "measured": {"float32": {}, "int4": {}}}',
     '{"weights": ["int4"], "num_tokens": 9, "measured": {}}',
     '{"weights": "int2", "num_tokens": 9, "measured": {"float32": {"perplexity": 1,'
     ' "agreement": 1, "divergence": 0}, "int2": {"perplexity": 1, "agreement": 1,'
     ' "divergence": 0}}}'],
)  # fmt: skip
def test_damaged_verdicts_are_measured_anew(damage: str, tmp_path: Path) -> None:
    choose(Models(int4=WITHIN), tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(damage, encoding="utf-8")
    models = Models(int4=BEYOND, int8=WITHIN)
    assert choose(models, tmp_path) == "int8"
    assert json.loads(path.read_text(encoding="utf-8"))["weights"] == "int8"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_bytes(b"")
    assert choose(Models(int4=WITHIN), in_the_way / "accuracy") == "int4"


def test_the_cache_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models = Models(int4=WITHIN)
    assert choose_weights(MODEL, models.text, models.build) == "int4"
    assert len(list((tmp_path / "radixd" / "accuracy").glob("*.json"))) == 1


@pytest.mark.parametrize(("int4_blocks", "chosen"), [(True, "int4"), (False, "int8")])
@pytest.mark.parametrize("why", ["parameters", "memory", "tokenizer"])
def test_what_cannot_be_measured_follows_the_file(
    int4_blocks: bool,
    chosen: WeightFormat,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = replace(MODEL, int4_blocks=int4_blocks)
    models = Models(int4=WITHIN, int8=WITHIN)
    text = models.text
    if why == "parameters":
        model = replace(model, num_parameters=2_000_000_001)
        monkeypatch.setattr(weight_choice, "physical_bytes", lambda: 1 << 50)
    elif why == "memory":  # two copies in fp32 would not fit
        monkeypatch.setattr(weight_choice, "physical_bytes", lambda: 8 * 9_999)
    else:
        text = list
    assert choose_weights(model, text, models.build, tmp_path) == chosen
    assert models.built == []
    assert not list(tmp_path.iterdir())


def test_physical_bytes_are_those_of_a_machine() -> None:
    assert 1 << 28 < weight_choice.physical_bytes() < 1 << 50
