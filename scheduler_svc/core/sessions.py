"""The book of sessions: whose conversations stay warm between two turns, and for how long.

A turn that ends leaves its whole sequence marked in the tree like a soft pin, in place of the turn
before.  A session is known from the end of its first turn until it is closed, its time has passed
or its tenant has too many others; no request is ever refused for one.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler_svc.core.messages import Ending, Submission
from scheduler_svc.core.pin import Pin
from scheduler_svc.core.pins import PinBook
from scheduler_svc.core.radix_node import PrefixKey
from scheduler_svc.core.request import Request
from scheduler_svc.core.views import SessionView

_TURN_ENDS = (Ending.STOP, Ending.LENGTH, Ending.POOL_FULL)
"""With a whole answer, or as much as there was room for.  One that was given up leaves the tail of
the turn before, as its client goes on from there."""


class Session:
    """One conversation."""

    __slots__ = (
        "cache_domain",
        "hits",
        "last_turn",
        "name",
        "num_tokens",
        "num_turns",
        "pin",
        "tenant",
        "used_ns",
    )

    def __init__(self, submission: Submission) -> None:
        self.tenant = submission.tenant
        self.cache_domain = submission.cache_domain
        self.name = submission.session
        self.pin: Pin | None = None
        """What marks its tail in the tree; None: nothing of it is marked."""
        self.num_tokens = 0
        """Of its tail, when that was marked."""
        self.last_turn = 0
        """Arrival of the request that ended last; it alone may set the tail."""
        self.num_turns = 0
        self.hits = 0
        """Turns that began with all that was kept."""
        self.used_ns = 0
        """When a turn of it last began or ended."""


class SessionBook:
    """Sessions by tenant, each tenant's least recently used first: all have one time to live, so
    these are also the first to expire."""

    def __init__(self, *, ttl_s: float, most_of_one: int) -> None:
        """`ttl_s` counts from a session's last turn, 0: none is kept; `most_of_one` tenant."""
        self._ttl_ns = round(ttl_s * 1e9)
        self._most_of_one = most_of_one
        self._tenants: dict[str, dict[tuple[str, str], Session]] = {}
        self._next_expiry_ns: int | None = None
        """No session expires before."""

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def __iter__(self) -> Iterator[Session]:
        for sessions in self._tenants.values():
            yield from sessions.values()

    def tune(self, *, ttl_s: float, most_of_one: int, now_ns: int, pins: PinBook) -> None:
        """Other limits from now on, for the sessions there are as well."""
        self._ttl_ns, self._most_of_one = round(ttl_s * 1e9), most_of_one
        for sessions in list(self._tenants.values()):
            self._make_room(sessions, most_of_one, pins)
        self._next_expiry_ns = now_ns
        self.expire(now_ns, pins)

    def begin_turn(self, request: Request, now_ns: int) -> bool:
        """A request was admitted for the first time; whether it found all that its session kept."""
        session = self._of(request)
        if session is None:
            return False
        self._touch(session, now_ns)
        end = None if session.pin is None else session.pin.node
        assert request.lease is not None
        is_hit = end is not None and end in request.lease.node.path()
        session.hits += is_hit
        return is_hit

    def end_turn(self, request: Request, ending: Ending, now_ns: int, pins: PinBook) -> None:
        """A request has ended; the first of a session's opens it."""
        if not request.session or not self._ttl_ns or ending not in _TURN_ENDS:
            return
        session = self._of(request)
        if session is None:
            session = self._open(request.submission, pins)
        session.num_turns += 1
        session.last_turn = request.arrival
        self._touch(session, now_ns)

    def keep_tail(self, request: Request, page_size: int, pins: PinBook) -> None:
        """What a request computed is in the tree: marks it, if its session still waits for it."""
        session = self._of(request)
        if session is None or session.last_turn != request.arrival:
            return
        _let_go(session, pins)
        tokens = request.tokens
        whole = PrefixKey.of(request.namespace, tokens, len(tokens), page_size)
        session.pin = pins.mark_prefix(whole, session.tenant)
        session.num_tokens = 0
        if session.pin is not None:
            session.num_tokens = pins.num_kept_tokens(session.pin)

    def close(self, name: str, cache_domain: str, tenant: str | None, pins: PinBook) -> bool:
        """Forgets a session of a tenant, or those of this name of all (None); whether there was
        one.  What it kept stays cached like anything else."""
        tenants = list(self._tenants) if tenant is None else [tenant]
        found = [self._tenants.get(each, {}).get((cache_domain, name)) for each in tenants]
        for session in found:
            if session is not None:
                self._forget(session, pins)
        return any(found)

    def expire(self, now_ns: int, pins: PinBook) -> None:
        """Forgets sessions whose time has passed."""
        if self._next_expiry_ns is None or now_ns < self._next_expiry_ns:
            return
        self._next_expiry_ns = None
        for sessions in list(self._tenants.values()):
            for session in list(sessions.values()):
                if session.used_ns + self._ttl_ns > now_ns:
                    self._watch(session.used_ns)
                    break
                self._forget(session, pins)

    def let_go_tails(self, pins: PinBook) -> None:
        """Before a flush: sessions stay known, nothing of them is kept."""
        for session in self:
            _let_go(session, pins)

    def lose_tails(self) -> None:
        """The pool is gone, and all marks with it."""
        for session in self:
            session.pin = None

    def num_kept_tokens(self, pins: PinBook) -> int:
        """Tokens of all tails that are cached, stems that several share counted once."""
        return pins.num_marked_tokens(s.pin for s in self if s.pin is not None)

    def views(self, now_ns: int, tenant: str | None, pins: PinBook) -> list[SessionView]:
        """The sessions of a tenant (None: of all), least recently used first."""
        tenants = list(self._tenants) if tenant is None else [tenant]
        return [
            SessionView(
                name=session.name,
                tenant=session.tenant,
                cache_domain=session.cache_domain,
                num_tokens=session.num_tokens,
                kept_tokens=pins.num_kept_tokens(session.pin) if session.pin else 0,
                expires_in_ns=max(0, session.used_ns + self._ttl_ns - now_ns),
                num_turns=session.num_turns,
                hits=session.hits,
            )
            for each in tenants
            for session in self._tenants.get(each, {}).values()
        ]

    # --- inside -------------------------------------------------------------------------------

    def _of(self, request: Request) -> Session | None:
        if not request.session:
            return None
        submission = request.submission
        sessions = self._tenants.get(submission.tenant, {})
        return sessions.get((submission.cache_domain, request.session))

    def _open(self, submission: Submission, pins: PinBook) -> Session:
        sessions = self._tenants.setdefault(submission.tenant, {})
        self._make_room(sessions, self._most_of_one - 1, pins)
        self._tenants[submission.tenant] = sessions  # the last of its sessions may have left
        session = Session(submission)
        sessions[session.cache_domain, session.name] = session
        return session

    def _touch(self, session: Session, now_ns: int) -> None:
        session.used_ns = now_ns
        self._watch(now_ns)
        sessions, name = self._tenants[session.tenant], (session.cache_domain, session.name)
        sessions[name] = sessions.pop(name)

    def _make_room(
        self, sessions: dict[tuple[str, str], Session], most: int, pins: PinBook
    ) -> None:
        while len(sessions) > most:
            self._forget(next(iter(sessions.values())), pins)

    def _forget(self, session: Session, pins: PinBook) -> None:
        _let_go(session, pins)
        sessions = self._tenants[session.tenant]
        del sessions[session.cache_domain, session.name]
        if not sessions:
            del self._tenants[session.tenant]

    def _watch(self, used_ns: int) -> None:
        known, expires_ns = self._next_expiry_ns, used_ns + self._ttl_ns
        self._next_expiry_ns = expires_ns if known is None else min(known, expires_ns)


def _let_go(session: Session, pins: PinBook) -> None:
    if session.pin is not None:
        pins.unmark(session.pin)
        session.pin = None
