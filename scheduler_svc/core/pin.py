"""A pin: the wish that a prefix stays cached.  Holds facts; `pins` keeps the book of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler_svc.core.messages import PinLevel

if TYPE_CHECKING:
    from scheduler_svc.core.radix_node import Lease, Namespace, RadixNode


class Pin:
    """One pinned prefix."""

    __slots__ = (
        "expires_ns",
        "hits",
        "lease",
        "level",
        "namespace",
        "node",
        "num_tokens",
        "pin_id",
        "tenant",
        "tokens",
        "ttl_ns",
    )

    def __init__(self, pin_id: str, namespace: Namespace, tokens: bytes, tenant: str) -> None:
        self.pin_id = pin_id
        self.namespace = namespace
        self.tokens = tokens
        """Key of the prefix."""
        self.num_tokens = 0
        """When it was pinned."""
        self.tenant = tenant
        """Who pinned it; its budget is charged."""
        self.level = PinLevel.NONE
        self.ttl_ns = 0
        self.expires_ns: int | None = None
        self.hits = 0
        self.node: RadixNode | None = None
        """Where the kept part ends; None: nothing is left of it."""
        self.lease: Lease | None = None
        """Of a hard pin: what keeps it."""
