"""The seam between the worker's books and whatever computes a forward pass.

A backend owns the weights and the KV pool; it knows slots, never plans, queues or samplers.
Not here: any backend.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

from gpu_worker.blocks import FloatArray, WeightFormat
from gpu_worker.row_table import RowTable
from gpu_worker.step import Step
from gpu_worker.step_runner import StepRunner

KvDtype = Literal["float32", "bfloat16", "fp8", "int8"]
Precision = WeightFormat | Literal["bfloat16"]


class Backend(Protocol):
    """Computes a step on a pool of its own: token ids and slots in, logits out.

    A token's logits have the same bits whatever else is in the step, however its prompt was cut
    into chunks and whatever of it was in the pool already.
    """

    @property
    def name(self) -> str:
        """For people: "torch", "native avx2"."""
        ...

    @property
    def device(self) -> str:
        """For people, what it computes on: "cpu", "cuda: NVIDIA H200"."""
        ...

    @property
    def num_slots(self) -> int:
        """Slots of the pool beside the dump slot."""
        ...

    @property
    def weights(self) -> Precision:
        """Precision of most matrices."""
        ...

    @property
    def kv_dtype(self) -> KvDtype:
        """Precision of the pool."""
        ...

    @property
    def kv_bytes_per_slot(self) -> int:
        """Of keys and values over all layers."""
        ...

    @property
    def least_stem_tokens(self) -> int:
        """See Hello."""
        ...

    def runner(self, table: RowTable) -> StepRunner:
        """Who carries out the steps of this table on the backend."""
        ...

    def forward(self, step: Step) -> FloatArray:
        """Writes the KV of the step's tokens; logits [sum of num_logits, vocab] in plan order.

        Valid until the next call.
        """
        ...

    def forget(self) -> None:
        """The content of all slots is unknown from here on."""
        ...

    def phases_ns(self) -> Mapping[str, int]:
        """Where the latest forward pass spent its time: "products", "attention", "rest"."""
        ...
