"""Addresses and limits of the HTTP gateway."""

from dataclasses import dataclass

from radixd.chassis.settings import Settings

_JSON_OVERHEAD = 3
"""A character of four bytes is twelve in JSON's escapes."""
_BESIDE_THE_PROMPT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """What the gateway is told; the rest it takes from the front."""

    host: str
    port: int
    """0: any free one."""
    names: frozenset[str] | None = None
    """DNS names, in lower case, that callers without keys may call it by; None: any."""
    gives_way: bool = False
    """Take any free port where this one is taken."""
    keep_alive_s: float = 10.0
    """Silence of a stream after which a comment is sent."""
    write_timeout_s: float = 30.0
    """A client that takes nothing for so long is cut."""
    model_names: frozenset[str] = frozenset()
    """What a request may call the model, besides its id."""


def max_body_bytes(max_prompt_bytes: int) -> int:
    """Longest body, for prompts of at most so many bytes."""
    return _JSON_OVERHEAD * max_prompt_bytes + _BESIDE_THE_PROMPT_BYTES


def own_names(settings: Settings) -> frozenset[str] | None:
    """What callers without keys may call the server by, in lower case; None: anything."""
    is_open = settings.insecure and not settings.http_names
    # A browser believes no page that its server has the name of this one's certificate.
    if is_open or settings.tls_cert is not None:
        return None
    names = (settings.http_host or settings.host, *settings.http_names)
    return frozenset(name.lower() for name in names)
