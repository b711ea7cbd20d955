"""The accuracy gate of a pool of 8 bits, on the built-in model."""

import pytest

from gpu_worker.accuracy import compare
from gpu_worker.backend import KvDtype
from gpu_worker.blocks import FloatArray, WeightFormat
from gpu_worker.gguf_config import config_from_gguf
from gpu_worker.gguf_weights import GgufWeights
from gpu_worker.native.native_backend import NativeBackend, NativeOptions
from gpu_worker.native.native_weights import read_native_weights
from gpu_worker.weight_choice import NUM_TOKENS, forward_text
from radixd.chassis.gguf_file import GgufFile
from radixd.chassis.model_source import resolve_model
from tests.gpu_worker.backends import needs_compiler
from tests.gpu_worker.test_accuracy_smollm2 import token_ids

pytestmark = [needs_compiler, pytest.mark.slow, pytest.mark.timeout(300)]

LEAST_AGREEMENT = 0.94
"""Measured: 0.982 behind float32 weights; behind int4 0.977 by AVX2, 0.958 by AVX-512, whose sums
differ in their last bits: enough to turn a few near ties of 384 tokens."""
MOST_DIVERGENCE = 0.006
"""Measured, in nats: 0.0010; 0.0032, 0.0038.  The perplexity rose by 0.17 %; 0.25 %, 0.44 %."""


def logits(weights: WeightFormat) -> dict[KvDtype, FloatArray]:
    """Of the accuracy text, with either pool."""
    with GgufFile(resolve_model("smollm2").path) as file:
        config = config_from_gguf(file)
        packed = read_native_weights(config, GgufWeights(file, config, lambda _: None), weights)
    found: dict[KvDtype, FloatArray] = {}
    kv_dtypes: tuple[KvDtype, ...] = ("float32", "int8")
    for kv_dtype in kv_dtypes:
        options = NativeOptions(
            num_slots=NUM_TOKENS + 1, max_length=NUM_TOKENS, kv_dtype=kv_dtype, num_threads=2
        )
        found[kv_dtype] = forward_text(NativeBackend(config, packed, options))(token_ids())
    return found


@pytest.mark.parametrize("weights", ["float32", "int4"])
def test_eight_bits_are_within_the_gate(weights: WeightFormat) -> None:
    found = logits(weights)
    exact = compare(found["float32"], found["float32"], token_ids())
    coarse = compare(found["float32"], found["int8"], token_ids())
    print(weights, coarse, "beside", exact)
    assert coarse.within_gate(exact)
    assert coarse.perplexity > 0.99 * exact.perplexity
    assert coarse.agreement >= LEAST_AGREEMENT
    assert 0 < coarse.divergence <= MOST_DIVERGENCE
