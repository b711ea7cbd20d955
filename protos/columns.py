"""Columns of 32-bit numbers as they travel: little-endian bytes.  Knows no message."""

from __future__ import annotations

import sys
from array import array

from protos.errors import WireError

_SWAP = sys.byteorder == "big"


def pack_ids(ids: array[int]) -> bytes:
    """Column of 32-bit integers to little-endian bytes."""
    if _SWAP:
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()


def unpack_ids(column: bytes, *, typecode: str = "i") -> array[int]:
    """Little-endian bytes to a column of 32-bit integers ("i" signed, "I" unsigned)."""
    if len(column) % 4:
        raise WireError(f"column of {len(column)} bytes is not a whole number of 32-bit integers")
    ids = array(typecode, column)
    if _SWAP:
        ids.byteswap()
    return ids


def pack_floats(floats: array[float]) -> bytes:
    """Column of floats, typecode "f", to little-endian float32."""
    if _SWAP:
        floats = floats[:]
        floats.byteswap()
    return floats.tobytes()


def unpack_floats(column: bytes) -> array[float]:
    """Little-endian float32 to a column of floats, typecode "f"."""
    if len(column) % 4:
        raise WireError(f"column of {len(column)} bytes is not a whole number of 32-bit floats")
    floats = array("f", column)
    if _SWAP:
        floats.byteswap()
    return floats


def all_natural(column: bytes) -> bool:
    """Whether no int32 of a column that travelled is negative: the highest byte of each tells, and
    bytes below 128 are ASCII.  A tenth of the time `min` takes."""
    return column[3::4].isascii()
