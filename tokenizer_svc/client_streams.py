"""How many calls each client has in progress, over both doors, and where that is enough."""

from collections.abc import Callable
from urllib.parse import unquote

from protos.errors import TooManyStreams


class ClientStreams:
    """Counts calls by client; knows nobody who has none."""

    def __init__(self, *, most: int) -> None:
        """`most` is of one client; 0: any number."""
        self._most = most
        self._counts: dict[str, int] = {}

    def enter(self, tenant: str, address: str) -> Callable[[], None]:
        """Counts a call of this tenant, or of this address where it is nobody's; the result,
        called once, counts it out again.

        Raises:
            TooManyStreams: the client has as many as it may.
        """
        client = f"tenant {tenant}" if tenant else f"address {address}"
        count = self._counts.get(client, 0)
        if 0 < self._most <= count:
            raise TooManyStreams(
                f"{count} calls of this {client.partition(' ')[0]} are in progress, as many as "
                "max_streams_per_client allows; try again when one has ended"
            )
        self._counts[client] = count + 1
        return lambda: self._leave(client)

    def __len__(self) -> int:
        """Clients with calls in progress."""
        return len(self._counts)

    def _leave(self, client: str) -> None:
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]


def host_of_peer(peer: str) -> str:
    """The address alone in what gRPC says of a peer, such as "ipv4:10.0.0.1:4711"."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer
