"""Chooses the arithmetic of `--weights auto`: the fastest that is accurate enough on this model.

Measured once for each model and kept in the user's cache folder.  Not here: what accuracy is, and
how a model is built.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import structlog

from gpu_worker.accuracy import Accuracy, compare
from gpu_worker.accuracy_text import TEXT
from gpu_worker.backend import Backend
from gpu_worker.blocks import FloatArray, WeightFormat
from gpu_worker.step import Step, StepRow
from radixd.chassis.model_source import cache_dir

Forward = Callable[[Sequence[int]], FloatArray]
"""From the tokens of a text to its logits [num_tokens, vocab]."""

BY_SPEED: tuple[WeightFormat, ...] = ("int4", "int8")
"""Fastest first; float32 is the reference, and what is left."""
_FORMATS: tuple[WeightFormat, ...] = ("float32", *BY_SPEED)
NUM_TOKENS = 384
"""Of the text that are measured: three formats on a model of 135M cost a few seconds."""
_MIN_TOKENS = 32
_MAX_PARAMETERS = 2_000_000_000
"""Of a model that is measured; a larger one would take minutes."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """What the choice needs to know of a model."""

    fingerprint: str
    backend: str
    """Names the backend and the state of its code: each has an arithmetic of its own."""
    num_parameters: int
    int4_blocks: bool
    """Whether most of its matrices are 4-bit blocks already, see `mostly_int4`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was measured, and what follows."""

    weights: WeightFormat
    num_tokens: int
    measured: dict[WeightFormat, Accuracy]


def choose_weights(
    model: MeasuredModel,
    token_ids: Callable[[], list[int]],
    forward: Callable[[WeightFormat], Forward],
    folder: Path | None = None,
) -> WeightFormat:
    """The first format by speed whose perplexity is within the gate, else float32.

    `forward(format)` builds the model; it is asked for one after the other and let go in between.
    A model too large to be measured, or without a tokenizer, gets int4 where its file is made of
    4-bit blocks, int8 otherwise.  The verdict is kept in `folder`, the user's cache by default.
    """
    if model.num_parameters > min(_MAX_PARAMETERS, physical_bytes() // 8):
        return _unmeasured(model, "too many parameters")
    path = (folder or cache_dir() / "accuracy") / f"{_key(model)}.json"
    verdict = _kept(path)
    cached = verdict is not None
    if verdict is None:
        tokens = token_ids()[:NUM_TOKENS]
        if len(tokens) < _MIN_TOKENS:
            return _unmeasured(model, "no tokenizer")
        verdict = measure(tokens, forward)
        _keep(path, verdict)
    figures = {
        f"{name}_{weights}": round(value, 5)
        for weights, accuracy in verdict.measured.items()
        for name, value in asdict(accuracy).items()
        if weights != "float32" or name == "perplexity"
    }
    _log.info(
        "weights_chosen",
        weights=verdict.weights,
        num_tokens=verdict.num_tokens,
        cached=cached,
        **figures,
    )
    return verdict.weights


def measure(token_ids: Sequence[int], forward: Callable[[WeightFormat], Forward]) -> Verdict:
    """Measures format after format until one is within the gate."""
    # No copy: what the reference computed stays valid, as it is never asked again.
    reference = forward("float32")(token_ids)
    exact = compare(reference, reference, token_ids)
    measured: dict[WeightFormat, Accuracy] = {"float32": exact}
    chosen: WeightFormat = "float32"
    for weights in BY_SPEED:
        compute = forward(weights)
        measured[weights] = compare(reference, compute(token_ids), token_ids)
        del compute  # before the next one is built
        if measured[weights].within_gate(exact):
            chosen = weights
            break
    return Verdict(weights=chosen, num_tokens=len(token_ids), measured=measured)


def forward_text(backend: Backend) -> Forward:
    """All logits of a text on a pool of more slots than it has tokens."""

    def forward(token_ids: Sequence[int]) -> FloatArray:
        count = len(token_ids)
        slots = np.arange(1, count + 1, dtype=np.int32)
        row = StepRow(
            row=0,
            prefix_len=0,
            extend_len=count,
            first_token=0,
            num_samples=0,
            num_logits=count,
            first_logit=0,
            slots=slots,
        )
        step = Step(
            rows=(row,),
            token_ids=np.asarray(token_ids, np.int32),
            positions=np.arange(count, dtype=np.int32),
            out_slots=slots,
            next_ids=np.empty(0, np.int32),
        )
        return backend.forward(step)

    return forward


def physical_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _unmeasured(model: MeasuredModel, reason: str) -> WeightFormat:
    weights: WeightFormat = "int4" if model.int4_blocks else "int8"
    _log.info(
        "weights_not_measured",
        weights=weights,
        reason=reason,
        num_parameters=model.num_parameters,
    )
    return weights


def _key(model: MeasuredModel) -> str:
    """Names everything that a verdict follows from."""
    parts = [model.fingerprint, model.backend, TEXT, NUM_TOKENS]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _kept(path: Path) -> Verdict | None:
    """The verdict in a file; None where there is none, or the file is none of ours."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        measured = {
            weights: Accuracy(**{name: float(value) for name, value in figures.items()})
            for weights in _FORMATS
            if (figures := found["measured"].get(weights)) is not None
        }
        chosen = _FORMATS[_FORMATS.index(found["weights"])]
        num_tokens = int(found["num_tokens"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if not {chosen, "float32"} <= measured.keys():
        return None
    return Verdict(weights=chosen, num_tokens=num_tokens, measured=measured)


def _keep(path: Path, verdict: Verdict) -> None:
    """Writes the verdict whole or not at all; a folder that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as own:
            part = Path(own) / path.name
            part.write_text(json.dumps(asdict(verdict), indent=1), encoding="utf-8")
            part.replace(path)
    except OSError as error:
        _log.warning("weights_verdict_not_kept", path=str(path), reason=str(error))
