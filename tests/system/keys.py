"""A file of tenants, and the keys in it: that of NAME is `key of NAME`."""

import hashlib
from pathlib import Path
from typing import Any

TENANTS = "acme: {keys: [ACME]}\nother: {keys: [OTHER]}\nadmin_keys: [ROOT]\n"
"""Each word in capitals stands for the digest of a key."""


def write_tenants(path: Path, text: str = TENANTS) -> Path:
    """Writes the file, with digests in it."""
    for name in ("acme", "other", "root"):
        digest = hashlib.sha256(f"key of {name}".encode()).hexdigest()
        text = text.replace(name.upper(), digest)
    path.write_text(text)
    return path


def bearer(name: str) -> str:
    """What shows a key."""
    return f"Bearer key of {name}"


def options_of(name: str) -> dict[str, Any]:
    """The same as options of a gRPC call."""
    return {"metadata": (("authorization", bearer(name)),)}


ACME, OTHER, ROOT = options_of("acme"), options_of("other"), options_of("root")
