"""The file of prefixes: what it says, and every way in which it may be wrong."""

from pathlib import Path

import pytest

from protos.errors import InvalidRequest
from radixd.chassis.preheat_file import MAX_PREFIXES, FilePrefix, load_preheat_file

GOOD = """
prefixes:
  - text: "You are a helpful assistant."
  - chat: [{role: system, content: "be brief"}, {role: user, content: ""}]
    pin: hard
    ttl_s: 3600
    cache_domain: support
    tenant: acme
  - file: prompts/long.txt
    pin: soft
    ttl_s: 0.25
  - ids: [1, 2, 3]
    pin: none
"""


def load(folder: Path, text: str, *, max_prompt_bytes: int = 1000) -> tuple[FilePrefix, ...]:
    path = folder / "prefixes.yaml"
    path.write_text(text, encoding="utf-8")
    return load_preheat_file(path, max_prompt_bytes=max_prompt_bytes, tenants=["acme"])


def test_every_kind_of_entry(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "long.txt").write_bytes("量子\r\n".encode())
    assert load(tmp_path, GOOD) == (
        FilePrefix(number=1, text="You are a helpful assistant."),
        FilePrefix(
            number=2,
            turns=(("system", "be brief"), ("user", "")),
            pin="hard",
            ttl_ms=3_600_000,
            cache_domain="support",
            tenant="acme",
        ),
        # Byte for byte: a prefix with other line ends is another prefix.
        FilePrefix(number=3, text="量子\r\n", pin="soft", ttl_ms=250),
        FilePrefix(number=4, ids=(1, 2, 3)),
    )


def test_no_file_has_no_prefixes() -> None:
    assert load_preheat_file(None, max_prompt_bytes=1, tenants=()) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a mapping with the one key `prefixes`"),
        ("[]", "a mapping with the one key `prefixes`"),
        ("prefix: []", "a mapping with the one key `prefixes`"),
        ("prefixes: [{text: a}]\nmore: 1", "a mapping with the one key `prefixes`"),
        ("prefixes: []", "prefixes: a list of 1 to 1024"),
        ("prefixes: {text: a}", "prefixes: a list of 1 to 1024"),
        ("prefixes: [{text: a}, a]", "entry 2: a mapping was expected"),
        ("prefixes: [{}]", "entry 1: exactly one of text, chat, file, ids is needed, not none"),
        ("prefixes: [{text: a, ids: [1]}]", "entry 1: exactly one of"),
        ("prefixes: [{text: a, ttl: 1}]", "entry 1, ttl: unknown"),
        ("prefixes: [{text: a, 3: 1}]", "entry 1, 3: unknown"),
        ("prefixes: [{text: a}, {text: 5}]", "entry 2, text: text of at least"),
        ("prefixes: [{text: ''}]", "entry 1, text: text of at least"),
        ("prefixes: [{text: aaaaaaaaaaa}]", "entry 1, text: longer than the 10 bytes"),
        ('prefixes: [{text: "\\ud800"}]', "entry 1, text: half of a surrogate pair"),
        ("prefixes: [{chat: []}]", "entry 1, chat: a list of at least one message"),
        ("prefixes: [{chat: hello}]", "entry 1, chat: a list of at least one message"),
        ("prefixes: [{chat: [{role: system}]}]", "entry 1, chat[0]: a mapping with the keys"),
        (
            "prefixes: [{chat: [{role: tool, content: a}]}]",
            "entry 1, chat[0].role: one of system, user, assistant",
        ),
        (
            "prefixes: [{chat: [{role: user, content: 5}]}]",
            "entry 1, chat[0].content: text was expected",
        ),
        (
            "prefixes: [{chat: [{role: user, content: aaaaaa}, {role: user, content: bbbbb}]}]",
            "entry 1, chat: longer than the 10 bytes",
        ),
        ("prefixes: [{file: absent.txt}]", "absent.txt: No such file"),
        ("prefixes: [{file: latin1.txt}]", "latin1.txt: no UTF-8 at byte 1"),
        ("prefixes: [{file: long.txt}]", "long.txt: longer than the 10 bytes"),
        ("prefixes: [{file: empty.txt}]", "entry 1, file: text of at least one character"),
        ("prefixes: [{file: [a]}]", "entry 1, file: the name of a text file"),
        ('prefixes: [{file: "a\\0b"}]', "entry 1, file: "),
        ("prefixes: [{file: .}]", "Is a directory"),
        ("prefixes: [{ids: []}]", "entry 1, ids: a list of at least one token id"),
        ("prefixes: [{ids: 5}]", "entry 1, ids: a list of at least one token id"),
        ("prefixes: [{ids: [1, -1]}]", "entry 1, ids[1]: -1 is no token id"),
        ("prefixes: [{ids: [true]}]", "entry 1, ids[0]: True is no token id"),
        ("prefixes: [{ids: [2147483648]}]", "entry 1, ids[0]: 2147483648 is no token id"),
        ("prefixes: [{text: a, pin: firm}]", "entry 1, pin: one of none, soft, hard"),
        ("prefixes: [{text: a, pin: }]", "entry 1, pin: one of none, soft, hard"),
        ("prefixes: [{text: a, pin: [soft]}]", "entry 1, pin: one of none, soft, hard"),
        ("prefixes: [{text: a, ttl_s: 5}]", "entry 1, ttl_s: only a pin has a time to live"),
        ("prefixes: [{text: a, ttl_s: 5, pin: none}]", "entry 1, ttl_s: only a pin has"),
        ("prefixes: [{text: a, ttl_s: 0, pin: soft}]", "entry 1, ttl_s: a number of seconds"),
        ("prefixes: [{text: a, ttl_s: true, pin: soft}]", "entry 1, ttl_s: a number of seconds"),
        ("prefixes: [{text: a, ttl_s: .nan, pin: soft}]", "entry 1, ttl_s: a number of seconds"),
        ("prefixes: [{text: a, ttl_s: 2592001, pin: soft}]", "entry 1, ttl_s: a number of"),
        ("prefixes: [{text: a, ttl_s: '5', pin: soft}]", "entry 1, ttl_s: a number of seconds"),
        ("prefixes: [{text: a, cache_domain: 5}]", "entry 1, cache_domain: a name of at most"),
        ("prefixes: [{text: a, tenant: beta}]", "entry 1, tenant: 'beta' is no tenant"),
        ("prefixes: [{text: a, tenant: 5}]", "entry 1, tenant: 5 is no tenant"),
        ("prefixes:\n- text: a\n  text: b", "'text' comes twice"),
        ("prefixes: [{text: a}", "expected"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "latin1.txt").write_bytes(b"a\xe9")
    (tmp_path / "long.txt").write_bytes(b"a" * 11)
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(InvalidRequest) as caught:
        load(tmp_path, text, max_prompt_bytes=10)
    assert caught.value.field == "preheat"
    message = str(caught.value)
    assert message.startswith(f"preheat: {tmp_path / 'prefixes.yaml'}")
    assert problem in message
    assert "\n" not in message


def test_too_many_entries(tmp_path: Path) -> None:
    text = "prefixes:\n" + "- {ids: [1]}\n" * MAX_PREFIXES
    assert len(load(tmp_path, text)) == MAX_PREFIXES
    with pytest.raises(InvalidRequest, match="prefixes: a list of 1 to 1024"):
        load(tmp_path, text + "- {ids: [1]}\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    with pytest.raises(InvalidRequest, match=r"absent\.yaml: No such file"):
        load_preheat_file(path, max_prompt_bytes=1, tenants=())
