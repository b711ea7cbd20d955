"""Requests of web pages: those of other origins, and those whose name leads to this machine."""

import pytest
from starlette.datastructures import Headers

from radixd.chassis.setting_sources import load_settings
from tests.http.ask import PLAIN, error_of, ok
from tokenizer_svc.http.config import own_names
from tokenizer_svc.http.errors import HttpRefusal
from tokenizer_svc.http.pages import refuse_foreign_name, refuse_foreign_page

BODY = b'{"prompt":"a","max_tokens":1}'
FORM = "application/x-www-form-urlencoded"


def is_refused(headers: Headers) -> bool:
    """Whether a server that goes by ours.example.com wants nothing of it."""
    try:
        refuse_foreign_name(headers, frozenset({"ours.example.com"}))
    except HttpRefusal:
        return True
    return False


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "content-type": "text/plain"},
        {"origin": "http://evil.example", "content-type": FORM},
        {"origin": "http://evil.example", "content-type": ""},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://[::1"},
        {"origin": "http://localhost"},
        {"sec-fetch-site": "cross-site", "content-type": FORM},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_what_another_page_sends_unasked_is_refused(http, headers):
    answer = await http.post(PLAIN, content=BODY, headers=headers)
    assert error_of(answer, 403)["code"] == "foreign_page"
    assert (await ok(http, PLAIN, prompt="a", max_tokens=1))["choices"]


async def test_who_is_no_page_or_our_own_is_served(http):
    own = str(http.base_url).rstrip("/")
    for headers in (
        {},
        {"content-type": FORM},
        {"origin": own, "content-type": "text/plain", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        # Browsers ask before they send this one, and are given no leave.
        {"origin": "http://evil.example", "content-type": "application/json; charset=utf-8"},
    ):
        answer = await http.post(PLAIN, content=BODY, headers=headers)
        assert answer.status_code == 200, headers
    refuse_foreign_page("GET", Headers({"sec-fetch-site": "cross-site"}))


async def test_a_name_that_may_be_anybodys_is_refused_where_nobody_shows_a_key(http):
    """DNS rebinding: to the browser the page and this server are one."""
    evil = {"host": "evil.example:3000", "origin": "http://evil.example:3000"}
    for kind in ("text/plain", "application/json"):
        answer = await http.post(PLAIN, content=BODY, headers=evil | {"content-type": kind})
        error = error_of(answer, 403)
        assert error["code"] == "foreign_host"
        assert "--http-names" in error["message"]
    for path in ("/v1/models", "/metrics", "/v1/sessions"):
        assert (await http.get(path, headers={"host": "evil.example"})).status_code == 403
    assert (await http.get("/health", headers={"host": "evil.example"})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:3000", "LOCALHOST.", "a.localhost", "127.0.0.1:1", "[::1]:3000"),
        *("192.0.2.7", "front:3000", "gpu.local", "gpu.internal", "OURS.example.com:3000", ""),
    ],
)
def test_names_that_are_ours_alone(host: str):
    assert not is_refused(Headers({"host": host}))


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:3000", "127.1.x"),
        *("x.ours.example.com", "[::1", "evil.example:", "u@evil.example", "local.evil"),
    ],
)
def test_names_that_may_be_anybodys(host: str):
    assert is_refused(Headers({"host": host}))


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, {"127.0.0.1"}),
        ({"host": "Gpu.Example.com"}, {"gpu.example.com"}),
        ({"http_host": "a.example", "host": "::1"}, {"a.example"}),
        ({"http_names": "A.example, b.example"}, {"127.0.0.1", "a.example", "b.example"}),
        ({"insecure": True}, None),
        ({"insecure": True, "host": "0.0.0.0", "http_names": "c"}, {"0.0.0.0", "c"}),
        ({"tls_cert": "c.pem", "tls_key": "k.pem", "http_names": "d"}, None),
    ],
)
def test_the_names_that_a_server_goes_by(flags, names):
    assert own_names(load_settings(flags)) == names


def test_a_second_host_is_looked_at_too():
    assert is_refused(Headers(raw=[(b"host", b"localhost"), (b"host", b"evil.example")]))
