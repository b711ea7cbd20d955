"""What is asked of a group and of one process alike, in plans of several rows."""

from dataclasses import dataclass

from protos.plan import SamplingParams
from tests.gpu_worker.driver import Driver, Known, Part
from tests.gpu_worker.tiny_models import VOCAB, random_tokens

GREEDY = SamplingParams(logprobs=2)
DRAWN = SamplingParams(temperature=0.9, top_k=30, top_p=0.95, seed=11, logprobs=0)
PENALIZED = SamplingParams(
    temperature=0.7, seed=5, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias=((7, 2.0),)
)
NUM_STEPS = 8


@dataclass(frozen=True)
class Said:
    """What came of it."""

    tokens: list[list[int]]
    """Of each step, row after row."""
    logprobs: list[float]
    """Of the chosen tokens, where rows asked for them."""


def play(driver: Driver) -> Said:
    """Chunks, cached prefixes, company, drafts, penalties; from no rows to no rows."""
    driver.engine.reset()
    prompt = random_tokens(37, seed=1)
    tokens, logprobs = [], []

    def step(*parts: Part) -> list[int]:
        tokens.append(driver.step(*parts))
        if driver.logprobs is not None:
            logprobs.extend(driver.logprobs.chosen)
        return tokens[-1]

    known = driver.generate(driver.open(3), prompt, 5)
    greedy = driver.open(0, sampling=GREEDY)
    step(Part(greedy, prompt[:20], samples=False))
    penalized = driver.open(1, sampling=PENALIZED, known=Known(prompt=prompt[:9]))
    step(Part(greedy, prompt[20:]), Part(penalized, prompt[:9]))
    drawn = driver.open(2, greedy.slots[:30], sampling=DRAWN)
    # Three guesses of which two are right.
    drafts = [known[1], known[2], (known[3] + 1) % VOCAB]
    step(Part(drawn, prompt[30:]), Part(greedy, [-1], drafts=drafts), Part(penalized, [-1]))
    assert driver.num_sampled == [1, 3, 1]
    for _ in range(NUM_STEPS):
        step(Part(greedy, [-1]), Part(penalized, [-1]), Part(drawn, [-1]))
    for row in (greedy, penalized, drawn):
        driver.free(row)
    step()
    return Said(tokens, logprobs)
