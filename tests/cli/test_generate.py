"""`radixd generate`: what it sends and what it prints."""

import json
from pathlib import Path

import pytest

from protos.radixd.v1 import inference_pb2
from tests.cli.conftest import Run
from tests.cli.fake_server import FakeServer

EVERY_OPTION = [
    *("--max-tokens=7", "--seed=9", "--temperature=0.5", "--top-k=3", "--top-p=0.9"),
    *("--min-p=0.1", "--stop=a", "--stop=b", "--ignore-eos", "--timeout-ms=4000"),
    *("--cache-domain=tenant", "--no-store", "--request-id=mine"),
]


def test_json_is_one_object_with_every_key(server: FakeServer, run: Run) -> None:
    for form in ("--stream", "--no-stream"):
        ran = run(
            "generate", "--prompt", "Hi", "--seed", "5", "--json", form, "--target", server.target
        )
        assert ran.code == 0, ran.err
        assert json.loads(ran.out) == {
            "text": "Hello!",
            "token_ids": [100, 101, 102],
            "finish_reason": "length",
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "cached_tokens": 4,
                "reasoning_tokens": 0,
            },
            "seed": 5,
            "request_id": "r-1",
        }


def test_people_see_text_on_stdout_and_the_bill_on_stderr(server: FakeServer, run: Run) -> None:
    server.inference.pieces = ["[bold]量子", "\x1b[31m!"]
    ran = run("generate", "--prompt", "Hi", "--target", server.target)
    assert ran.out == "[bold]量子\x1b[31m!\n"
    assert "9 prompt tokens (4 cached), 2 generated, length, seed 0" in ran.err


def test_every_option_arrives(server: FakeServer, run: Run) -> None:
    run("generate", "--prompt", "Hi", *EVERY_OPTION, "--target", server.target)
    (request,) = server.inference.requests
    assert request.text == "Hi"
    assert (request.timeout_ms, request.cache_domain) == (4000, "tenant")
    assert (request.no_store, request.request_id) == (True, "mine")
    assert request.sampling == inference_pb2.SamplingParams(
        max_tokens=7,
        seed=9,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        stop=["a", "b"],
        ignore_eos=True,
    )


def test_what_is_not_given_is_not_sent(server: FakeServer, run: Run) -> None:
    run("generate", "--prompt", "Hi", "--target", server.target)
    run("generate", "--prompt", "Hi", "--temperature", "0", "--target", server.target)
    bare, greedy = server.inference.requests
    assert bare.sampling.ListFields() == []
    assert [field.name for field, _ in bare.ListFields() if field.name != "sampling"] == ["text"]
    assert greedy.sampling.HasField("temperature")


def test_limits_penalties_and_class_are_sent(server: FakeServer, run: Run) -> None:
    argv = ["--priority", "-3", "--workload", "code", "--min-tokens", "2", "--logprobs", "0"]
    argv += ["--repetition-penalty", "1.5", "--presence-penalty", "-1", "--frequency-penalty", "2"]
    ran = run("generate", "--prompt", "Hi", *argv, "--target", server.target)
    assert ran.code == 0, ran.err
    (request,) = server.inference.requests
    sampling = request.sampling
    assert (request.priority, request.workload, sampling.min_tokens) == (-3, "code", 2)
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    assert penalties == (1.5, -1.0, 2.0)
    assert sampling.HasField("logprobs")


def test_shape_and_form_are_sent(server: FakeServer, run: Run, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}', encoding="utf-8")
    argv = ["--n", "2", "--best-of", "3", "--echo", "--prompt-logprobs", "0", "--session", "mine"]
    argv += ["--stream-interval", "4", "--logit-bias", "5=-100", "--logit-bias", "-7=0.5"]
    run(
        "generate", "--prompt", "Hi", *argv, "--json-schema", str(schema), "--target", server.target
    )
    (request,) = server.inference.requests
    assert (request.n, request.best_of, request.echo, request.session) == (2, 3, True, "mine")
    assert request.HasField("prompt_logprobs")
    assert request.stream_interval == 4
    assert dict(request.sampling.logit_bias) == {5: -100.0, -7: 0.5}
    assert request.constraint.json_schema == '{"type": "object"}'


@pytest.mark.parametrize(
    ("argv", "constraint"),
    [
        (["--json-object"], inference_pb2.Constraint(json_object=True)),
        (["--regex", "a+"], inference_pb2.Constraint(regex="a+")),
        (["--regex", ""], inference_pb2.Constraint(regex="")),
        (
            ["--choice", "a", "--choice", "b"],
            inference_pb2.Constraint(choice=inference_pb2.Choices(texts=["a", "b"])),
        ),
    ],
)
def test_every_form(
    server: FakeServer, run: Run, argv: list[str], constraint: inference_pb2.Constraint
) -> None:
    run("generate", "--prompt", "Hi", *argv, "--target", server.target)
    assert server.inference.requests[0].constraint == constraint


def test_several_answers(server: FakeServer, run: Run) -> None:
    server.inference.num_choices = 2
    argv = ["generate", "--prompt", "Hi", "--n", "2", "--target", server.target]
    assert run(*argv).out == "Hello!\nHello!\n"
    value = json.loads(run(*argv, "--json").out)
    assert (value["text"], value["finish_reason"]) == ("Hello!", "length")
    first, second = value["choices"]
    assert first == {"text": "Hello!", "token_ids": [100, 101, 102], "finish_reason": "length"}
    assert second == {
        "text": "Hello!",
        "token_ids": [100, 101, 102],
        "finish_reason": "stop",
        "matched_stop": "stop",
    }
    assert value["usage"]["completion_tokens"] == 3


def test_log_probabilities_in_json(server: FakeServer, run: Run) -> None:
    top = [inference_pb2.TopLogprob(token_id=7, logprob=-0.5)]
    server.inference.logprobs = [inference_pb2.TokenLogprobs(token_id=7, logprob=-0.5, top=top)]
    argv = ["generate", "--prompt", "Hi", "--logprobs", "1", "--json", "--target", server.target]
    value = json.loads(run(*argv).out)
    entry = {"token_id": 7, "logprob": -0.5, "top": [{"token_id": 7, "logprob": -0.5}]}
    assert value["logprobs"] == [entry] * 3


def test_prompts_of_every_kind(server: FakeServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("from\na file\n", encoding="utf-8")
    run("generate", "--chat", "你好", "--target", server.target)
    run("generate", "--ids", "1, 2,-3", "--target", server.target)
    run("generate", "--prompt-file", str(file), "--target", server.target)
    run("generate", "--prompt", "", "--target", server.target)
    chat, tokens, text, empty = server.inference.requests
    assert [(m.role, m.content) for m in chat.chat.messages] == [(2, "你好")]
    assert list(tokens.tokens.ids) == [1, 2, -3]
    assert text.text == "from\na file\n"
    assert empty.WhichOneof("prompt") == "text"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "give one of --prompt, --prompt-file, --chat and --ids"),
        (["--prompt", "a", "--ids", "1"], "give one of"),
        (["--ids", "1,x"], "--ids: 'x' is not an integer"),
        (["--ids", "1,,2"], "--ids: '' is not an integer"),
        (["--ids", "1, ,2"], "--ids: '' is not an integer"),
        (["--ids", "1,2,"], "--ids: '' is not an integer"),
        (["--ids", ","], "--ids: '' is not an integer"),
        (
            ["--prompt", "a", "--seed", str(2**63)],
            "seed: 9223372036854775808 is not in -9223372036854775808..9223372036854775807",
        ),
        (
            ["--prompt", "a", "--timeout-ms", "-1"],
            "timeout_ms: -1 is not in 0..18446744073709551615",
        ),
        (["--prompt", "a\udcff"], "text: not valid UTF-8"),
        (["--chat", "a\udcff"], "content: not valid UTF-8"),
        (["--prompt-file", "no-such-file"], "--prompt-file: no-such-file: No such file"),
        (["--prompt", "a", "--json-schema", "none"], "--json-schema: none: No such file"),
        (["--prompt", "a", "--regex", "a", "--json-object"], "give one of --json-schema"),
        (["--prompt", "a", "--logit-bias", "5"], "--logit-bias: '5' is not ID=BIAS"),
        (["--prompt", "a", "--logit-bias", "x=1"], "--logit-bias: 'x=1' is not ID=BIAS"),
        (["--prompt", "a", "--logit-bias", f"{2**63}=1"], "--logit-bias: 9223372036854775808 is"),
    ],
)
def test_what_cannot_be_sent(server: FakeServer, run: Run, argv: list[str], complaint: str) -> None:
    ran = run("generate", *argv, "--target", server.target)
    assert ran.code == 1
    assert complaint in ran.err
    assert server.inference.requests == []


def test_a_file_that_is_no_text(server: FakeServer, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "latin1"
    file.write_bytes(b"caf\xe9")
    ran = run("generate", "--prompt-file", str(file), "--target", server.target)
    assert ran.code == 1
    assert "no UTF-8 at byte 3" in ran.err
