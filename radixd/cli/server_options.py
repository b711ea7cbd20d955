"""The options every client command takes: which server, and how it knows who asks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from radixd.cli.client import Client, default_target
from radixd.cli.encryption import ClientTls
from radixd.cli.terminal import ApiKey, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the user typed of it; to be inherited by the options of a command."""

    target: Target = None
    api_key: ApiKey = None
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Whom to trust, as PEM; default: whom the system does."),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate to show, as PEM.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.")] = None

    @property
    def address(self) -> str:
        """The target that was given, or the default one."""
        return self.target or default_target()

    @property
    def tls(self) -> ClientTls:
        """The files that were given."""
        return ClientTls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key)

    def connect(self) -> Client:
        """A connection to the server.

        Raises:
            RadixdError: what was given is no address, no key or no certificate.
        """
        return Client(self.address, api_key=self.api_key, tls=self.tls)
