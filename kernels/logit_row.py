"""What kernels over a row of logits share.  Device functions; tested through those kernels."""

import triton
import triton.language as tl


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
