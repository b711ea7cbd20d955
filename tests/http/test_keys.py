"""Who may ask what over HTTP: keys as over gRPC, in the headers of OpenAI and of Anthropic."""

import re

import pytest

from tests.http.ask import CHAT, PLAIN, connected, error_of, ok, user
from tests.system import keys
from tests.system.stack import launched
from tokenizer_svc.http.openapi import description
from tokenizer_svc.tenancy import ROLE_OF


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    file = keys.write_tenants(tmp_path_factory.mktemp("tenants") / "tenants.yaml")
    with launched("--fake-worker", "--fake-step-ms", "1", "--tenants", str(file)) as running:
        yield running


@pytest.fixture
async def http(stack):
    async with connected(stack) as client:
        yield client


def bearer(name):
    return {"authorization": keys.bearer(name)}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer nobody's"},
        {"authorization": "key of acme"},
        {"authorization": "Basic key of acme"},
        {"authorization": "Bearer"},
        {"x-api-key": "nobody's"},
        {"x-api-key": ""},
        {"x-api-key": "key of acme", **bearer("other")},
        {"authorization": "Bearer \xff\xfe"},
    ],
)
async def test_strangers_learn_nothing(http, headers):
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    said = set()
    for body in (b'{"prompt":"a"}', b"{", b""):
        answer = await http.post(PLAIN, content=body, headers=encoded)
        error = error_of(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        said.add(error["message"])
    assert len(said) == 1
    for path in ("/v1/models", "/metrics"):
        assert (await http.get(path, headers=encoded)).status_code == 401


PATHS = [(path, verb) for path, operations in description()["paths"].items() for verb in operations]


@pytest.mark.parametrize(("path", "verb"), PATHS)
async def test_every_path_but_three_needs_a_key(http, path, verb):
    path = path.replace("{model}", "fake").replace("{session}", "one")
    status = (await http.request(verb, path)).status_code
    known = (await http.request(verb, path, headers=bearer("acme"))).status_code
    if path in ("/health", "/ready", "/openapi.json"):
        assert (status, known) == (200, 200)
    else:
        assert status == 401
        assert known in (200, 400, 404), "an inference key is let in, and the body may be wrong"


async def test_no_path_is_left_out_of_the_table(served):
    """Each takes the role of a gRPC method, or is one of the three."""
    endpoints = served.front._http._app.door.endpoints
    named = {re.sub(r":\w+}", "}", each.path) for each in endpoints}
    assert named == set(description()["paths"])
    assert {each.grpc_method for each in endpoints} - {None} <= set(ROLE_OF)
    assert {each.path for each in endpoints if each.grpc_method is None} == {
        *("/health", "/ready", "/openapi.json")
    }


async def test_either_header_carries_a_key(http):
    for headers in (bearer("acme"), {"x-api-key": "key of acme"}):
        answer = await http.post(
            CHAT, json={"messages": user("hi"), "max_tokens": 2}, headers=headers
        )
        assert answer.status_code == 200
        assert (await http.get("/v1/models", headers=headers)).status_code == 200


async def test_probes_and_the_description_are_open(http):
    for path in ("/health", "/ready", "/openapi.json"):
        assert (await http.get(path)).status_code == 200


async def test_a_tenant_shares_no_prefix_and_cancels_no_request_of_another(http):
    prompt = "a prefix that two tenants ask for"
    cached = []
    for name in ("acme", "other", "acme"):
        http.headers.update(bearer(name))
        answer = await ok(http, PLAIN, prompt=prompt, max_tokens=1)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, len(prompt) - 1]
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with http.stream("POST", PLAIN, json=body | {"request_id": "mine"}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        answer = await http.post("/cancel", json={"request_id": "mine"}, headers=bearer("other"))
        assert error_of(answer, 404)["code"] == "unknown_request_id"
        assert await ok(http, "/cancel", request_id="mine") == {}
        assert [line async for line in lines][-2] == "data: [DONE]"
