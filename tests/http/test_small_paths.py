"""Models, tokens, preheat, probes, metrics and the description."""

import json
import re
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.ask import CHAT, PLAIN, error_of, ok, refused, user


async def test_models(http):
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert model["id"] == "fake"
    assert model["object"] == "model"
    assert model["max_model_len"] == 2048
    assert (await http.get("/v1/models/fake")).json() == model
    assert error_of(await http.get("/v1/models/org/other"), 404)["code"] == "model_not_found"


async def test_tokens_there_and_back(http):
    text = "čaj 漢字 🙂"
    found = await ok(http, "/tokenize", prompt=text)
    ids = list(text.encode())
    assert found == {"tokens": ids, "count": len(ids), "max_model_len": 2048}
    assert (await ok(http, "/detokenize", tokens=found["tokens"]))["text"] == text


async def test_messages_are_tokenised_as_a_chat_computes_them(http):  # field case 76
    found = await ok(http, "/tokenize", messages=user("hi"))
    chat = await ok(http, CHAT, messages=user("hi"), max_tokens=1)
    assert found["count"] == chat["usage"]["prompt_tokens"]
    closed = await ok(http, "/tokenize", messages=user("hi"), add_generation_prompt=False)
    assert found["tokens"][: closed["count"]] == closed["tokens"]
    assert closed["count"] < found["count"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [264]}, "tokens[0]"),
        ("/detokenize", {"tokens": [97, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/preheat", {}, "prefixes"),
        ("/preheat", {"prefixes": "a"}, "prefixes"),
        ("/preheat", {"prefixes": ["a"], "pin": "firm"}, "pin"),
        ("/preheat", {"prefixes": ["a"], "ttl_s": 5}, "ttl_ms"),
        ("/preheat", {"prefixes": ["a"], "pin": "soft", "ttl_s": 0}, "ttl_s"),
        ("/preheat", {"prefixes": ["a"], "pin": "soft", "ttl_s": 1, "ttl_ms": 1}, "ttl_ms"),
        ("/cancel", {}, "request_id"),
    ],
)
async def test_what_is_refused_is_named(http, path, body, param):
    assert (await refused(http, path, body))["param"] == param


def test_the_line_of_curl_works_as_it_is_written(stack):
    line = (
        "curl -X POST http://localhost:3000/preheat "
        """-d '{"prefixes":["常见问题","欢迎咨询"]}'"""
    ).replace("http://localhost:3000", stack.http)
    said = subprocess.run(
        ["sh", "-c", f"{line} -sS --noproxy '*'"], capture_output=True, text=True, timeout=20
    )
    assert said.returncode == 0, said.stderr
    prefixes = json.loads(said.stdout)["prefixes"]
    assert [prefix["num_tokens"] for prefix in prefixes] == [12, 12]
    assert all("error" not in prefix for prefix in prefixes)


async def test_a_preheated_prefix_is_warm_and_pinned(http):
    body = {
        "prefixes": ["a prefix to be warm", ""],
        "chats": [{"messages": user("to be warm")}, user("as well")],
        "tokens": [[97, 98, 99], [97, 264]],
        "pin": "soft",
        "ttl_s": 60,
    }
    prefixes = (await ok(http, "/preheat", **body))["prefixes"]
    failed = [i for i, prefix in enumerate(prefixes) if prefix.get("error")]
    assert failed == [1, 5]
    assert prefixes[1]["error"].startswith("prefixes[1]")
    assert prefixes[0]["pin_id"]
    assert prefixes[0]["pinned_tokens"] == 19
    answer = await ok(http, PLAIN, prompt="a prefix to be warm, and more", max_tokens=1)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 19
    again = (await ok(http, "/preheat", prefixes=["a prefix to be warm"]))["prefixes"]
    assert again[0]["computed_tokens"] == 0


async def test_metrics_can_be_scraped(http):
    await ok(http, PLAIN, prompt="a", max_tokens=1)
    answer = await http.get("/metrics")
    samples = {
        (sample.name, sample.labels.get("path"), sample.labels.get("status")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["radixd_front_http_requests_total", PLAIN, "200"] >= 1
    assert samples["radixd_front_serving", None, None] == 1
    assert samples["radixd_front_requests_live", None, None] == 0
    assert 0 <= samples["radixd_front_pool_used_share", None, None] < 1


async def test_the_description_names_every_path_and_resolves(http):
    await ok(http, PLAIN, prompt="a", max_tokens=1, session="open")
    description = (await http.get("/openapi.json")).json()
    assert description["openapi"].startswith("3.1")
    for path, operations in description["paths"].items():
        for method in operations:
            path = path.replace("{model}", "fake").replace("{session}", "open")
            answer = await http.request(method, path)
            assert answer.status_code not in (404, 405), path
    for target in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(description))):
        found = description
        for step in target.split("/"):
            found = found[step]
        assert found


async def test_head_has_no_body(http):
    answer = await http.head("/health")
    assert answer.status_code == 200
    assert not answer.content
