"""The channel that a benchmark measures through, for use inside one event loop."""

import grpc

from radixd.cli.client import CHANNEL_OPTIONS, parse_target
from radixd.cli.encryption import ClientTls, channel_credentials


def open_channel(target: str, tls: ClientTls) -> grpc.aio.Channel:
    """A channel to a target as the user wrote it, encrypted where that or the files ask for it.

    Raises:
        CommandError: the target is no address.
        BadTlsFile: a file cannot be used.
    """
    address, credentials = parse_target(target), channel_credentials(target, tls)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
