"""The noise of a token in a draw, a function of (seed, position, token id) alone.

Philox4x32-10 (Salmon et al., 2011) with key = seed and counter = (token id // 4, position, 0, 0)
gives four words, of which the one of token id % 4 is the token's; its noise is -ln(-ln(u)) of
u = (word + 1/2) / 2**32.  Device functions for the kernels that draw, and their plain-torch
reference; tested through those kernels.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def random_words(seed, position, four):
    """Random words of the tokens 4 * four.. of each, side by side."""
    four = four.to(tl.uint32)
    zero = tl.zeros_like(four)
    a, b, c, d = tl.philox(seed, four, zero + position.to(tl.uint32), zero, zero)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (4 * four.shape[0],))


@triton.jit
def gumbel_noise(words):
    """Gumbel noise -log(-log(u)) of words, u = (word + 1/2) / 2**32."""
    # u is not to be rounded to 1: above 1/2 its distance to 1 is used.
    low = words < 0x80000000
    u = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = 1.0 - v
    # log(1 - v) of a small v: log(rest) times what rounding did to rest (Kahan).
    upper = tl.where(rest == 1.0, v, -tl.log(rest) * v / tl.where(rest == 1.0, 1.0, 1.0 - rest))
    return -tl.log(tl.where(low, -tl.log(u), upper))


def random_words_reference(seed: int, position: int, ids: torch.Tensor) -> torch.Tensor:
    """Philox4x32-10, in int64 whose 32-bit halves are multiplied apart."""
    mask = 0xFFFFFFFF
    zero = torch.zeros_like(ids)
    c0, c1, c2, c3 = ids // 4, zero + position, zero, zero
    k0, k1 = seed & mask, (seed >> 32) & mask
    for _ in range(10):
        (high0, low0), (high2, low2) = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    words = torch.stack([c0, c1, c2, c3], dim=1)
    return words.gather(1, (ids % 4)[:, None])[:, 0]


def _product(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of 32-bit numbers times a 32-bit factor."""
    low = (x & 0xFFFF) * factor
    high = (x >> 16) * factor + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)
