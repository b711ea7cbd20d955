"""Requests that a browser sends for a page that is none of this server's.

A browser gives no page of another origin an answer, as no header here says that it may have it, but
it sends some requests unasked; and a page whose own name is made to lead to this machine (DNS
rebinding) is of our origin to the browser.  Not here: keys, without which a page gets nothing.
"""

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from tokenizer_svc.http.errors import HttpRefusal

_READS_ALONE = ("GET", "HEAD")
_FOREIGN_SITES = ("cross-site", "same-site")
_LOCAL_ZONES = (".localhost", ".local", ".internal")
"""Nobody can have the name of a page in these."""


def refuse_foreign_page(method: str, headers: Headers) -> None:
    """Refuses what a page of another origin makes a browser send without asking us first.

    Raises:
        HttpRefusal: it is that; JSON is not, as browsers ask before they send it.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    origin = headers.get("origin")
    if kind == "application/json":
        return
    if origin is None:
        is_foreign = method not in _READS_ALONE and headers.get("sec-fetch-site") in _FOREIGN_SITES
    else:
        is_foreign = _address_in(origin) != headers.get("host", "")
    if is_foreign:
        raise HttpRefusal(403, "foreign_page", "pages of other servers are not served")


def refuse_foreign_name(headers: Headers, names: frozenset[str]) -> None:
    """Refuses a request to a name that may be a stranger's; `names`, in lower case, are ours.

    Raises:
        HttpRefusal: it is; says what to do.
    """
    for host in headers.getlist("host"):
        name = _name_in(host)
        if name is None or (name not in names and not _is_local(name)):
            raise HttpRefusal(
                403,
                "foreign_host",
                f"the header Host names {host!r}, which may be anybody's; give --http-names to the "
                "server if it is its own, or --tenants FILE with keys",
            )


def _address_in(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _name_in(host: str) -> str | None:
    """Without port, brackets and the dot of the root; None: it is no name."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return None


def _is_local(name: str) -> bool:
    """Whether no name server of a stranger is asked for it."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(_LOCAL_ZONES)
    return True
