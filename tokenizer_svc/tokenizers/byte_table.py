"""The bytes of each token id; the worker reads them as well, so they live in the chassis."""

from radixd.chassis.byte_table import ByteTable, byte_table

__all__ = ["ByteTable", "byte_table"]
