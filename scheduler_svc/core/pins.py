"""The book of pins: which prefixes are to stay cached, how firmly, for how long, at whose expense.

A soft pin marks the node where its prefix ends, so that eviction takes it after all others.  A
hard pin holds a lease like a running request, within a budget.  Knows tree and tokens, no request.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator

from scheduler_svc.core.messages import PinLevel, PinReceipt
from scheduler_svc.core.pin import Pin
from scheduler_svc.core.radix_node import TOKEN_BYTES, Namespace, PrefixKey, RadixNode
from scheduler_svc.core.radix_tree import RadixTree
from scheduler_svc.core.views import PinView

_NOWHERE = Namespace("", "", "", "", "")
NUM_FIRST_TOKENS = 32
MOST_PINS = 4096
MOST_PINS_OF_ONE = 512
"""Of one tenant, so that nobody takes all there may be."""


class PinBook:
    """Pins by id, in order of creation."""

    def __init__(
        self,
        tree: RadixTree,
        page_size: int,
        budget_pages: Callable[[str], tuple[int, int]],
        num_ever: int = 0,
    ) -> None:
        """`budget_pages`: of a tenant, pages that all hard pins and that its own may hold;
        `num_ever`: pins of earlier books, whose names must not return."""
        self._tree = tree
        self._page_size = page_size
        self._budget_pages = budget_pages
        self._pins: dict[str, Pin] = {}
        self.num_ever = num_ever
        self._next_expiry_ns: int | None = None

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def pin(
        self, key: PrefixKey, *, tenant: str, level: PinLevel, ttl_ns: int, now_ns: int
    ) -> PinReceipt:
        """Pins a cached prefix, as much of it as the budget allows; the same prefix once.

        Pinned again, a prefix takes the new level and time.
        """
        assert level is not PinLevel.NONE
        num_pages = self._tree.peek(key)
        asked = num_pages
        known = self._same(key, tenant)
        if known is not None:
            self._let_go(known)
        message = ""
        if level is PinLevel.HARD:
            num_pages, message = self._afford(key, num_pages, tenant)
        if known is None:
            num_own = sum(pin.tenant == tenant for pin in self._pins.values())
            if num_own >= MOST_PINS_OF_ONE:
                num_pages, message = 0, f"the tenant has {num_own} pins, no more may be"
            elif len(self._pins) >= MOST_PINS:
                num_pages, message = 0, f"there are {MOST_PINS} pins, no more may be"
        if not num_pages:
            if known is not None:
                del self._pins[known.pin_id]
            if not key.tokens:
                message = f"the prefix is shorter than a page of {self._page_size} tokens"
            return PinReceipt("", 0, message or "nothing of the prefix is cached")
        pin = known or self._new_pin(key, tenant)
        pin.level, pin.ttl_ns, pin.num_tokens = level, ttl_ns, asked * self._page_size
        pin.expires_ns = now_ns + ttl_ns if ttl_ns else None
        self._watch(pin.expires_ns)
        self._hold(pin, PrefixKey(key.namespace, key.tokens[: num_pages * self._page_bytes]))
        return PinReceipt(pin.pin_id, num_pages * self._page_size, message)

    def mark(self, path: list[RadixNode], tenant: str) -> Pin | None:
        """Marks what is left of a path, its end first, as needed soon: evicted after all that is
        not pinned.  In no book; None when nothing is left."""
        node = next((node for node in path if node.parent is not None), None)
        if node is None:
            return None
        pin = Pin("", _NOWHERE, b"", tenant)
        pin.level, pin.node = PinLevel.SOFT, node
        node.pins += (pin,)
        self._tree.requeue(node)
        return pin

    def mark_prefix(self, key: PrefixKey, tenant: str) -> Pin | None:
        """The same of as much of a prefix as is cached; it counts as used now."""
        lease = self._tree.acquire(key)
        pin = self.mark(lease.node.path(), tenant)
        self._tree.release(lease)
        return pin

    def unmark(self, pin: Pin) -> None:
        """Takes a mark away."""
        self._let_go(pin)

    def remove(self, pin_id: str, tenant: str | None = None) -> bool:
        """Unpins; False when no such pin is this tenant's (None: anybody's)."""
        pin = self._pins.get(pin_id)
        if pin is None or tenant not in (None, pin.tenant):
            return False
        self._let_go(pin)
        del self._pins[pin_id]
        return True

    def clear(self) -> None:
        """Removes every pin."""
        for pin_id in list(self._pins):
            self.remove(pin_id)

    def expire(self, now_ns: int) -> bool:
        """Removes pins whose time has passed; whether it had to look."""
        if self._next_expiry_ns is None or now_ns < self._next_expiry_ns:
            return False
        self._next_expiry_ns = None
        for pin in list(self._pins.values()):
            if pin.expires_ns is not None and pin.expires_ns <= now_ns:
                self.remove(pin.pin_id)
            else:
                self._watch(pin.expires_ns)
        return True

    def hit(self, node: RadixNode, now_ns: int) -> None:
        """A request has matched the path to `node`: pins along it live on."""
        if not self._pins:
            return
        climber: RadixNode | None = node
        while climber is not None:
            for pin in climber.pins:
                pin.hits += 1
                if pin.ttl_ns:
                    pin.expires_ns = now_ns + pin.ttl_ns
            climber = climber.parent

    def num_hard_pages(self, tenant: str | None = None) -> int:
        """Pages that hard pins hold, stems that several share counted once."""
        theirs = (pin for pin in self._pins.values() if tenant in (None, pin.tenant))
        return _num_pages(pin.lease.node for pin in theirs if pin.lease is not None)

    def num_hard_pages_by(self, name_of: Callable[[str], str]) -> dict[str, int]:
        """The same by a name of each tenant."""
        named: dict[str, list[RadixNode]] = {}
        for pin in self._pins.values():
            if pin.lease is not None:
                named.setdefault(name_of(pin.tenant), []).append(pin.lease.node)
        return {name: _num_pages(ends) for name, ends in named.items()}

    def num_kept_tokens(self, pin: Pin) -> int:
        """Tokens of a pin or mark that are cached."""
        path = [] if pin.node is None else pin.node.path()
        return sum(len(node.pages) for node in path) * self._page_size

    def num_marked_tokens(self, pins: Iterable[Pin]) -> int:
        """Tokens of several that are cached, stems that some of them share counted once."""
        return _num_pages(pin.node for pin in pins) * self._page_size

    def views(self, now_ns: int, tenant: str | None = None) -> list[PinView]:
        """Every pin of a tenant (None: of all), oldest first."""
        return [self._view(p, now_ns) for p in self._pins.values() if tenant in (None, p.tenant)]

    # --- inside -------------------------------------------------------------------------------

    @property
    def _page_bytes(self) -> int:
        return self._page_size * TOKEN_BYTES

    def _same(self, key: PrefixKey, tenant: str) -> Pin | None:
        for pin in self._pins.values():
            if (pin.namespace, pin.tokens, pin.tenant) == (key.namespace, key.tokens, tenant):
                return pin
        return None

    def _new_pin(self, key: PrefixKey, tenant: str) -> Pin:
        self.num_ever += 1
        pin = Pin(f"pin-{self.num_ever}", key.namespace, key.tokens, tenant)
        self._pins[pin.pin_id] = pin
        return pin

    def _afford(self, key: PrefixKey, num_pages: int, tenant: str) -> tuple[int, str]:
        """How many pages of a prefix may be pinned, and why not all of them."""
        of_all, of_tenant = self._budget_pages(tenant)
        # What is pinned of it already costs nothing; counting it anew errs on the safe side.
        left_of_all = of_all - self.num_hard_pages()
        left_of_tenant = of_tenant - self.num_hard_pages(tenant)
        left = min(left_of_all, left_of_tenant)
        if num_pages <= left:
            return num_pages, ""
        size = self._page_size
        whose = "tenant's share of the " if left_of_tenant < left_of_all else ""
        message = (
            f"the {whose}budget of pins has {max(0, left) * size} slots left, "
            f"the prefix takes {num_pages * size}"
        )
        return max(0, left), message

    def _hold(self, pin: Pin, key: PrefixKey) -> None:
        lease = self._tree.acquire(key)
        pin.node = lease.node
        pin.node.pins += (pin,)
        if pin.level is PinLevel.HARD:
            pin.lease = lease
        else:
            self._tree.release(lease)

    def _let_go(self, pin: Pin) -> None:
        node, pin.node = pin.node, None
        if node is not None:
            node.pins = tuple(other for other in node.pins if other is not pin)
            self._tree.requeue(node)
        if pin.lease is not None:
            lease, pin.lease = pin.lease, None
            self._tree.release(lease)

    def _watch(self, expires_ns: int | None) -> None:
        if expires_ns is not None:
            known = self._next_expiry_ns
            self._next_expiry_ns = expires_ns if known is None else min(known, expires_ns)

    def _view(self, pin: Pin, now_ns: int) -> PinView:
        expires_in = None if pin.expires_ns is None else max(0, pin.expires_ns - now_ns)
        return PinView(
            pin_id=pin.pin_id,
            level=pin.level,
            tenant=pin.tenant,
            cache_domain=pin.namespace.cache_domain,
            num_tokens=pin.num_tokens,
            kept_tokens=self.num_kept_tokens(pin),
            expires_in_ns=expires_in,
            hits=pin.hits,
            first_token_ids=array("i", pin.tokens[: NUM_FIRST_TOKENS * TOKEN_BYTES]),
        )


def _num_pages(ends: Iterable[RadixNode | None]) -> int:
    """Pages of the paths that end here, each once."""
    seen: dict[RadixNode, None] = {}
    for climber in ends:
        while climber is not None and climber not in seen:
            seen[climber] = None
            climber = climber.parent
    return sum(len(node.pages) for node in seen)
