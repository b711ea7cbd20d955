"""`radixd version`: what runs here, for bug reports."""

import platform
from importlib import metadata

from radixd.cli.terminal import Json, out, print_json

PACKAGES = ("radixd", "grpcio", "protobuf", "pyzmq", "torch", "transformers", "tokenizers")


def versions() -> dict[str, str | None]:
    """Version by package, without importing any of them; None: not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found | {"python": platform.python_version()}


def version(json: Json = False) -> None:
    """Show the versions of radixd and of what it stands on."""
    if json:
        print_json(versions())
        return
    for name, number in versions().items():
        out.print(f"{name:14}{number or 'not installed'}")
