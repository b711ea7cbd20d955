"""Certificates made for a test, by the openssl program; they are good for two days."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path

    def copy_to(self, other: "Certificate") -> None:
        """Takes the place of another one, key last, as renewals do."""
        for source, target in ((self.cert, other.cert), (self.key, other.key)):
            fresh = target.with_suffix(".new")
            fresh.write_bytes(source.read_bytes())
            fresh.replace(target)


def make_authority(folder: Path, name: str) -> Certificate:
    """Who signs others; trusts nobody but itself."""
    made = _files(folder, name)
    extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=keyCertSign")
    _openssl("req", "-x509", *_EC, *_subject(made, name), *extensions, "-days", "2")
    return made


def make_signed(folder: Path, name: str, authority: Certificate) -> Certificate:
    """For a server on this machine, or for a client."""
    made = _files(folder, name)
    by = ("-CA", str(authority.cert), "-CAkey", str(authority.key))
    extensions = ("-addext", _NAMES, "-addext", "basicConstraints=CA:FALSE")
    _openssl("req", "-x509", *by, *_EC, *_subject(made, name), *extensions, "-days", "2")
    return made


def _files(folder: Path, name: str) -> Certificate:
    return Certificate(cert=folder / f"{name}.pem", key=folder / f"{name}.key")


def _subject(made: Certificate, name: str) -> tuple[str, ...]:
    return ("-subj", f"/CN={name}", "-out", str(made.cert), "-keyout", str(made.key))


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)
