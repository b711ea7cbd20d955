"""Who can reach a server of these settings, and whether that is meant."""

import ipaddress
import socket

from protos.errors import InvalidRequest
from radixd.chassis.settings import Settings
from radixd.chassis.tenants import Tenants


def check_exposure(settings: Settings, tenants: Tenants) -> None:
    """Nothing when strangers are kept out by a key or by the loopback, or are welcome.

    Raises:
        InvalidRequest: of the option that names the address; says the ways out.
    """
    if settings.insecure or tenants.have_keys:
        return
    hosts = {"host": settings.host}
    if settings.http_port >= 0 and settings.http_host:
        hosts["http_host"] = settings.http_host
    for option, host in hosts.items():
        if not is_loopback(host):
            raise InvalidRequest(
                option,
                f"{host or 'every address'} is reached from other machines, and no key is asked "
                "for; give --tenants FILE with keys, or --insecure to serve everybody",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there; a name counts by all it stands for."""
    bare = host.strip("[]")
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM) if bare else []
    except (OSError, UnicodeError):
        return True  # nobody listens there at all; that is said of the port
    addresses = [str(where[0]).partition("%")[0] for *_, where in found]
    return bool(addresses) and all(ipaddress.ip_address(each).is_loopback for each in addresses)
