"""What kernels over a row of logits share.  Device functions; tested through those kernels."""

import triton
import triton.language as tl

_LARGEST = tl.constexpr(3e38)


@triton.jit
def load_logits(x, token, vocab_size):
    """Logits of these tokens; -inf for a NaN, and beyond the vocabulary."""
    value = tl.load(x + token, mask=token < vocab_size, other=-float("inf"))
    return tl.where(value == value, value, -float("inf"))


@triton.jit
def winner(value, token):
    """The largest value, and the lowest of the tokens that have it."""
    best = tl.max(value, 0)
    return best, tl.min(tl.where(value == best, token, 2147483647), 0)


@triton.jit
def has_limits(row, top_k, top_p, min_p, vocab_size):
    """Whether top-k, top-p or min-p of a row leaves some tokens out of a draw."""
    k = tl.load(top_k + row)
    limits_k = (k > 0) & (k < vocab_size)
    return limits_k | (tl.load(top_p + row) < 1.0) | (tl.load(min_p + row) > 0)


@triton.jit
def bounded_score(value, heat):
    """value / heat within float32, so that differences of two such are numbers."""
    return tl.minimum(tl.maximum(value / heat, -_LARGEST), _LARGEST)
