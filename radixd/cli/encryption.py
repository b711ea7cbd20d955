"""How a client command makes an encrypted connection: what it trusts and what it shows.

`grpcs://HOST:PORT`, or any of the three files, asks for one.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from protos.errors import RadixdError

SCHEME = "grpcs://"


class BadTlsFile(RadixdError):
    """A file of the command line cannot be used; the message names the option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """PEM files of a client."""

    ca: Path | None = None
    """Who signed the server's certificate; None: who the system trusts."""
    cert: Path | None = None
    """The client's own certificate, for servers that ask for one."""
    key: Path | None = None

    @property
    def is_asked_for(self) -> bool:
        """Whether any was given."""
        return any(path is not None for path in (self.ca, self.cert, self.key))


NO_TLS = ClientTls()


def channel_credentials(target: str, tls: ClientTls) -> grpc.ChannelCredentials | None:
    """What a channel to this target, as the user wrote it, is made with; None: no encryption.

    Raises:
        BadTlsFile: names the option and the file.
    """
    if not target.strip().startswith(SCHEME) and not tls.is_asked_for:
        return None
    if (tls.cert is None) != (tls.key is None):
        raise BadTlsFile("--tls-cert and --tls-key belong together; give both")
    # Without a file of its own gRPC trusts a list that comes with it, not the machine's.
    ca = _system_roots() if tls.ca is None else _read("--tls-ca", tls.ca)
    key = None if tls.key is None else _read("--tls-key", tls.key)
    cert = None if tls.cert is None else _read("--tls-cert", tls.cert)
    _check_pair(tls)
    return grpc.ssl_channel_credentials(ca, key, cert)


def _system_roots() -> bytes | None:
    try:
        return Path(ssl.get_default_verify_paths().cafile).read_bytes()
    except (OSError, TypeError):  # TypeError: there is none
        return None


def _read(option: str, path: Path) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadTlsFile(f"{option}: {path}: {error.strerror}") from None
    if b"-----BEGIN " not in text:
        raise BadTlsFile(f"{option}: {path}: holds nothing in PEM")
    return text


def _check_pair(tls: ClientTls) -> None:
    if tls.cert is None or tls.key is None:
        return
    try:
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trial.load_cert_chain(tls.cert, tls.key, password="")
    except OSError:
        raise BadTlsFile(f"--tls-key: {tls.key}: is not the key of {tls.cert}") from None
