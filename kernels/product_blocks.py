"""Which block of a product's result a program makes.  A device function, tested through products.

Programs that run together should read the same: a few blocks of tokens against one block of
outputs, then the next outputs, so that memory gives weights once for those tokens, and the
second-level cache the rest.
"""

import triton
import triton.language as tl

NEIGHBOURS = 8
"""Blocks of tokens side by side."""


@triton.jit
def product_block(
    num_tokens, num_outputs, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NEIGHBOURS: tl.constexpr
):
    """Block of tokens and of outputs of a program of a grid of all, one behind the other."""
    token_blocks = tl.cdiv(num_tokens, BLOCK_M)
    across = NEIGHBOURS * tl.cdiv(num_outputs, BLOCK_N)
    first = tl.program_id(0) // across * NEIGHBOURS
    height = tl.minimum(token_blocks - first, NEIGHBOURS)
    within = tl.program_id(0) % across
    return first + within % height, within // height
