"""Certificates of the public doors: read, checked, and read again when their files have changed.

One certificate serves gRPC and HTTP.  Not here: when to look again, and what clients trust.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from protos.errors import InvalidRequest
from radixd.chassis.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of a server."""

    cert: Path
    """Its certificate, and those between it and the root."""
    key: Path
    client_ca: Path | None = None
    """Who signs certificates of clients, each of which must show one; None: they need none."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.cert, self.key) + (() if self.client_ca is None else (self.client_ca,))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The same as they stand in the files."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


def tls_files(settings: Settings) -> TlsFiles | None:
    """The files that the settings name; None: no encryption."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return TlsFiles(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


class ServerTls:
    """The certificate in force; connections that are open keep the one they began with."""

    def __init__(self, files: TlsFiles) -> None:
        """Reads the files.

        Raises:
            InvalidRequest: one cannot be used; names its option and what is wrong.
        """
        self.files = files
        self._now = _read(files)
        self._given_to_grpc = self._now

    def reload(self) -> None:
        """Reads the files again, for connections from now on.

        Raises:
            InvalidRequest: as at the start; what was in force stays.
        """
        self._now = _read(self.files)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Those of one gRPC server, which asks again at each connection."""
        self._given_to_grpc = self._now
        return grpc.dynamic_ssl_server_credentials(
            _for_grpc(self._now),
            self._news_for_grpc,  # type: ignore[arg-type]  # None is allowed, says its text
            require_client_authentication=self.files.client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """The same for HTTP/1.1."""
        context = _read(self.files).context
        context.sni_callback = self._use_newest
        return context

    def _news_for_grpc(self) -> grpc.ServerCertificateConfiguration | None:
        """None: what it has."""
        if self._given_to_grpc is self._now:
            return None
        self._given_to_grpc = self._now
        return _for_grpc(self._now)

    def _use_newest(
        self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext
    ) -> None:
        # Asked of every connection before its handshake, also where a client names no server.
        connection.context = self._now.context


def _for_grpc(read: _Read) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(read.key, read.cert)], root_certificates=read.client_ca
    )


def _read(files: TlsFiles) -> _Read:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    cert = _certificates("tls_cert", files.cert)
    key = _bytes("tls_key", files.key)
    try:
        # Without a password of our own the library would ask for one on the terminal.
        context.load_cert_chain(files.cert, files.key, password="")
    except OSError as error:
        raise InvalidRequest("tls_key", f"{files.key}: {_why_not(error, files.cert)}") from None
    client_ca = None
    if files.client_ca is not None:
        client_ca = _certificates("tls_client_ca", files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
    return _Read(cert=cert, key=key, client_ca=client_ca, context=context)


def _certificates(option: str, path: Path) -> bytes:
    text = _bytes(option, path)
    try:
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trial.load_verify_locations(cadata=text.decode("ascii", "ignore"))
    except (ValueError, ssl.SSLError):
        raise InvalidRequest(option, f"{path}: holds no certificate in PEM") from None
    return text


def _bytes(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(option, f"{path}: {error.strerror}") from None


def _why_not(error: OSError, cert: Path) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"is not the key of {cert}"
    return "holds no private key in PEM, or one with a password"
