"""Keys and limits as the `openai` package meets them."""

import hashlib

import openai
import pytest

from tests.clients.openai_clients import connect
from tests.system.stack import launched

ASKED = {"model": "fake", "prompt": "x", "max_tokens": 4}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    file = tmp_path_factory.mktemp("tenants") / "tenants.yaml"
    file.write_text(f"acme: {{keys: [{hashlib.sha256(b'key of acme').hexdigest()}]}}")
    with launched(
        *("--fake-worker", "--fake-step-ms", "3", "--max-length", "2048"),
        *("--tenants", str(file), "--max-streams-per-client", "1"),
    ) as running:
        yield running


def test_the_key_of_the_package_is_taken(stack):
    with connect(stack, api_key="key of acme") as client:
        assert client.completions.create(**ASKED).usage.completion_tokens == 4


def test_a_stranger_is_an_authentication_error(stack):
    with connect(stack, api_key="nobody's") as client:
        for ask in (lambda: client.completions.create(**ASKED), client.models.list):
            with pytest.raises(openai.AuthenticationError) as caught:
                ask()
            assert "nobody" not in caught.value.message


def test_one_stream_too_many_is_a_rate_limit_error_and_the_retry_finds_room(stack):
    long = ASKED | {"max_tokens": 400, "extra_body": {"ignore_eos": True}, "stream": True}
    with connect(stack, api_key="key of acme") as client:
        stream = client.completions.create(**long)
        assert next(iter(stream)).choices
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**ASKED)
        assert caught.value.code == "too_many_streams"
        # The first stream takes a second or two; the package waits as long as the server says.
        patient = client.with_options(max_retries=8)
        assert patient.completions.create(**ASKED).usage.completion_tokens == 4
        stream.close()
