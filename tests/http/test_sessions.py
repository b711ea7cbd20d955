"""Sessions over HTTP: kept, listed, closed."""

from urllib.parse import quote

import pytest

from tests.http.ask import CHAT, PLAIN, error_of, ok, refused, user


async def listed(http):
    answer = await http.get("/v1/sessions")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["object"], body["has_more"]) == ("list", False)
    return {session["id"]: session for session in body["data"]}


async def test_a_conversation_is_kept_and_closed(http):
    name = "agent/7 čaj?"
    messages = user("hello")
    for _ in range(2):
        answer = await ok(http, CHAT, messages=messages, max_tokens=4, session=name)
        messages += [answer["choices"][0]["message"], *user("go on")]
    session = (await listed(http))[name]
    assert (session["num_turns"], session["object"]) == (2, "session")
    assert session["kept_tokens"] == session["num_tokens"] > 0
    where = "/v1/sessions/agent%2F7%20%C4%8Daj%3F"
    answer = await http.delete(where)
    assert answer.json() == {"id": name, "object": "session.deleted", "deleted": True}
    assert name not in await listed(http)
    error = error_of(await http.delete(where), 404)
    assert (error["code"], error["param"]) == ("session_not_found", "session")


async def test_a_session_is_of_its_domain(http):
    await ok(http, PLAIN, prompt="abc", max_tokens=1, session="s", cache_domain="own")
    assert (await listed(http))["s"]["cache_domain"] == "own"
    assert (await http.delete("/v1/sessions/s")).status_code == 404
    answer = await http.delete("/v1/sessions/s", params={"cache_domain": "own"})
    assert answer.status_code == 200


@pytest.mark.parametrize("name", ["", "s" * 129, "a\tb", "\n", "a\n", "a\nb", "\x00", "\u2028"])
async def test_names_that_cannot_be(http, name):
    error = await refused(http, PLAIN, {"prompt": "a", "session": name})
    assert error["param"] == "session"
    answer = await http.delete("/v1/sessions/" + quote(name))
    assert error_of(answer, 400)["param"] == "session"


@pytest.mark.parametrize("name", ["%", "%zz", "a/../b", "a?b", "//", "\ufffd", "a;b=c", "+"])
async def test_odd_names_are_names(http, name):
    await ok(http, PLAIN, prompt="a", max_tokens=1, session=name)
    answer = await http.delete("/v1/sessions/" + quote(name, safe=""))
    assert answer.json()["id"] == name


@pytest.mark.parametrize(
    "url", ["/v1/sessions/%ff", "/v1/sessions/a?cache_domain=%c3", "/v1/models/%ff"]
)
async def test_bytes_that_are_no_characters_name_nothing(http, url):
    await ok(http, PLAIN, prompt="a", max_tokens=1, session="\ufffd")
    answer = await http.request("GET" if "models" in url else "DELETE", url)
    assert error_of(answer, 400)["code"] == "bad_url"
    assert (await http.delete("/v1/sessions/%ef%bf%bd")).status_code == 200


async def test_no_store_leaves_nothing_to_keep(http):
    error = await refused(http, PLAIN, {"prompt": "a", "session": "s", "no_store": True})
    assert error["param"] == "session"
