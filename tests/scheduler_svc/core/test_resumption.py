"""One request that is cut back goes on as if nothing had been: tokens, log probabilities,
penalties, min_tokens, the text with its stop strings, and the count of cached tokens."""

from dataclasses import replace

import pytest

from gpu_worker.fake_engine import FakeModel
from protos.plan import SamplingParams
from scheduler_svc.core.messages import Ending
from tests.scheduler_svc.core.cut_back import CutBack, Records, float32
from tests.scheduler_svc.core.test_prefix_cache import letters
from tokenizer_svc.text_output import StopRules, TextOutput
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, GO, SCRIPT, ByteTokenizer

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
SAMPLING = pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=1.0, seed=7)]
)
TO_THE_LAST = {"high_watermark": 1.0, "low_watermark": 1.0}


@DEPTHS
@SAMPLING
@pytest.mark.parametrize("times", [1, 2])
def test_short_prompt_with_a_long_answer(depth, sampling, times):  # field case 40
    # fifo, so that it is A who must go out when B comes.
    bench = Records(
        N=48, r=4, depth=depth, decode_reserve=0.0, retraction_policy="fifo", **TO_THE_LAST
    )
    prompt = letters(3)
    bench.submit("a", prompt, 40, sampling=sampling)
    while len(bench.tokens["a"]) < 30:
        bench.step()
    request = bench.core.state.live["a"]
    for round_number in range(times):
        name = f"b{round_number}"
        bench.submit(name, letters(8, seed=50 + round_number), 12)
        while request.num_retractions <= round_number:
            assert bench.step()
            if name in bench.endings:  # it fitted beside A: another one
                name += "'"
                bench.submit(name, letters(8, seed=len(name)), 12)
        while request.request_id not in bench.core.state.running and times > round_number + 1:
            bench.step()
    bench.run()
    assert bench.tokens["a"] == bench.reference(prompt, 40, sampling=sampling)
    assert len(bench.tokens["a"]) == 40
    assert bench.endings["a"].ending is Ending.LENGTH
    assert request.num_retractions == times
    for name, tokens in bench.tokens.items():
        if name != "a":
            assert len(tokens) == 12


@DEPTHS
@SAMPLING
def test_stream_with_log_probabilities(depth, sampling):  # field case 41
    prompt = letters(12)
    sampling = replace(sampling, logprobs=2)
    bench = CutBack(N=256, depth=depth)
    bench.submit("a", prompt, 30, sampling=sampling)
    bench.run()
    assert bench.num_cuts > 20
    stream = [token for piece in bench.pieces["a"] for token in piece]
    assert stream == bench.tokens["a"] == bench.reference(prompt, 30, sampling=sampling)
    wanted = bench.model.generate_logprobs(prompt, stream, 2)
    assert bench.chosen["a"] == float32(wanted.chosen)
    assert bench.top_ids["a"] == list(wanted.top_ids)
    assert bench.top_logprobs["a"] == float32(wanted.top_logprobs)
    assert len(bench.chosen["a"]) == len(stream) == 30


@DEPTHS
@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5, "temperature": 1.0, "seed": 3},
    ],
)
def test_penalties_know_prompt_and_output_once(depth, penalties):  # field case 43
    # The fake worker's tokens depend on the whole history, its order and where the output
    # begins; what the strengths do to logits is the worker's to show.
    prompt, sampling = letters(10), SamplingParams(**penalties)
    calm, cut = Records(depth=depth), CutBack(depth=depth)
    for bench in (calm, cut):
        bench.submit("a", prompt, 40, sampling=sampling)
        bench.run()
    assert cut.num_cuts > 30
    assert cut.tokens["a"] == calm.tokens["a"] == cut.reference(prompt, 40, sampling=sampling)
    for plan in cut.plans:
        for row in plan.new_rows:
            so_far = len(row.context_ids) - len(prompt)
            assert list(row.context_ids) == prompt + cut.tokens["a"][:so_far]
            assert row.num_prompt == len(prompt)


@DEPTHS
def test_min_tokens_count_from_the_prompt(depth):
    model = FakeModel(eos_every=2)
    sampling = SamplingParams(min_tokens=12)
    for seed in range(5):
        prompt = letters(6, seed=seed)
        bench = CutBack(model=model, depth=depth)
        bench.submit("a", prompt, 40, sampling=sampling)
        bench.run()
        assert bench.num_cuts >= 12
        assert bench.tokens["a"] == model.generate(prompt, 40, sampling)
        assert len(bench.tokens["a"]) > 12
        assert EOS not in bench.tokens["a"][:12]
        assert bench.endings["a"].ending is Ending.STOP


@DEPTHS
def test_stop_token_and_ignored_end_of_sequence(depth):
    model = FakeModel(eos_every=3)
    for seed in range(5):
        prompt = letters(6, seed=seed)
        said = model.generate(prompt, 30, ignore_eos=True)
        stop = (said[20],)
        bench = CutBack(model=model, depth=depth)
        bench.submit("a", prompt, 30, ignore_eos=True, stop_token_ids=stop)
        bench.run()
        wanted = model.generate(prompt, 30, ignore_eos=True, stop_token_ids=stop)
        assert bench.tokens["a"] == wanted
        assert bench.endings["a"].ending is Ending.STOP


@DEPTHS
def test_cached_tokens_stay_those_of_the_first_admission(depth):
    stem = letters(16)
    bench = CutBack(depth=depth)
    bench.ask("warm", stem, 2)
    bench.submit("a", [*stem, *letters(5, seed=1)], 20)
    bench.run()
    assert bench.cut_at["a"] > 10
    assert bench.cached["a"] == bench.first_cached["a"] == 16
    assert bench.core.counters()["prompt_tokens"] == 16 + 21, "a prompt counts once"
    assert bench.core.counters()["cached_tokens"] == 16


@DEPTHS
def test_carried_over_output_counts_like_its_own(depth):
    model = FakeModel(eos_every=40)
    sampling = SamplingParams(temperature=1.0, seed=5, min_tokens=10, presence_penalty=0.2)
    prompt = letters(9)
    wanted = model.generate(prompt, 30, sampling)
    bench = CutBack(model=model, depth=depth)
    bench.submit("a", prompt, 30, sampling=sampling, resume_output_ids=wanted[:7])
    bench.run()
    assert bench.tokens["a"] == wanted[7:]
    assert bench.num_cuts > 2


TEXTS = (
    # (what the model says, stop texts, text the client sees)
    ("one two three STOP four", ("STOP",), "one two three "),
    ("ST STO STOO STOP", ("STOP", "nowhere"), "ST STO STOO "),
    ("grüße, 世界 und 🌍 mehr", ("🌍",), "grüße, 世界 und "),
    ("grüße, 世界 und 🌍 mehr", ("界 u", "zz"), "grüße, 世"),
    ("aaaaaaab and aab", ("aab",), "aaaaa"),
    ("nothing to see STO", ("STOP",), "nothing to see STO"),
)


@DEPTHS
@pytest.mark.parametrize(("said", "stops", "seen"), TEXTS)
def test_text_with_stop_strings_is_the_same(said, stops, seen, depth):
    prompt = [SCRIPT, *said.encode(), GO]
    texts, num_ids = [], []
    for make in (Records, CutBack):
        bench = make(N=512, c=64, depth=depth, L=256)
        text, count = text_of(bench, prompt, stops)
        texts.append(text)
        num_ids.append(count)
    assert bench.num_cuts > 5
    assert texts == [seen, seen]
    assert num_ids[0] == num_ids[1]


def text_of(bench, prompt, stops):
    """What a front makes of the stream, which it ends when the text is complete."""
    rules = StopRules(texts=stops, token_ids=frozenset((EOS,)))
    output = TextOutput(ByteTokenizer().decoder(skip_special_tokens=True), rules)
    bench.submit("a", prompt, 100)
    bench.pieces["a"] = []
    text, num_ids = "", 0
    while not output.stopped and bench.step():
        while bench.pieces["a"] and not output.stopped:
            more, count = output.feed(bench.pieces["a"].pop(0))
            text, num_ids = text + more, num_ids + count
    if "a" not in bench.endings:
        bench.take(bench.core.cancel("a", bench.now_ns, finished=True))
    bench.run()
    assert bench.endings["a"].ending is Ending.STOP
    return text + output.finish(), num_ids
