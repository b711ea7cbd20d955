"""The seam between the worker's books and whatever computes a forward pass.

A backend owns the weights and the KV pool; it knows slots, never plans, queues or samplers.
Not here: any backend.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from gpu_worker.row_table import Step

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


class Backend(Protocol):
    """Computes a step on a pool of its own: token ids and slots in, logits out.

    A token's logits have the same bits whatever else is in the step, however its prompt was cut
    into chunks and whatever of it was in the pool already.
    """

    name: str
    """For people: "torch", "native avx2"."""
    weights: str
    """"float32", "int8" or "int4"."""
    kv_dtype: str
    """"float32" or "int8"."""
    kv_bytes_per_slot: int
    """Of keys and values over all layers."""

    def forward(self, step: Step) -> FloatArray:
        """Writes the KV of the step's tokens; logits [sum of num_samples, vocab] in plan order.

        Valid until the next call.
        """
        ...

    def forget(self) -> None:
        """The content of all slots is unknown from here on."""
        ...

    def phases_ns(self) -> Mapping[str, int]:
        """Where the latest forward pass spent its time: "products", "attention", "rest"."""
        ...
