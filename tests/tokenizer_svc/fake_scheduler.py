"""A small scheduler that speaks the internal schema: scripted tokens, no slots, no worker.

Its model says, for a prompt, either the script between <|script|> and <|go|> and then the end of
sequence, or bytes that follow from (prompt, position) alone, and the seed where it samples, so that
a resumed request goes on as it would have.
"""

import asyncio
import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from protos.wire import pack_floats, pack_ids, unpack_ids
from radixd.chassis.grpc_server import SERVER_OPTIONS
from tokenizer_svc.tokenizers.byte_tokenizer import EOS, GO, NUM_IDS, SCRIPT

MODEL = pb.Model(
    model_id="fake",
    vocab_size=NUM_IDS,
    max_length=4096,
    eos_token_ids=[EOS],
    num_slots=10_000,
    device="cpu",
    kv_dtype="none",
    kind="fake",
    weights="int4",
)


SCORES_PER_STEP = 4


@dataclass(kw_only=True)
class Behavior:
    """What a test turns; read at every token."""

    step_s: float = 0.0
    """Pause after each step."""
    tokens_per_step: int = 1
    num_before_hold: int | None = None
    """Tokens of each request after which it waits until this is None or higher."""
    answer: Callable[[pb.Submit], pb.Output | None] = lambda submit: None
    """An output to send at once, with the request's id filled in, instead of generating."""
    ending_apart: bool = False
    """The ending comes in a message after the last token."""
    cached_tokens: int = 0
    holds_scores: bool = False
    """Says the log probabilities of the first tokens of a prompt, and waits until this is false."""
    honors_cancel: bool = True


@dataclass(kw_only=True)
class Seen:
    """What reached the scheduler."""

    submits: list[pb.Submit] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    num_attached: int = 0
    running: set[str] = field(default_factory=set)


def next_token(prompt: list[int], output: list[int], seed: int | None = None) -> int:
    """The token the fake model says after this prompt and output; None: greedy."""
    if GO in prompt and SCRIPT in prompt:
        go = len(prompt) - 1 - prompt[::-1].index(GO)
        script = prompt[len(prompt) - 1 - prompt[::-1].index(SCRIPT) + 1 : go]
        return script[len(output)] if len(output) < len(script) else EOS
    drawn_from = (prompt, len(output)) if seed is None else (prompt, len(output), seed)
    digest = hashlib.sha256(repr(drawn_from).encode()).digest()
    return 97 + digest[0] % 26


def logprobs_of(output: list[int], start: int, num_top: int) -> pb.LogprobColumns:
    """Log probabilities of output[start:]; each number tells which token it belongs to.

    Of all tokens, the one at `at` is by its log probability the one of rank -at, modulo all.
    """
    chosen, top_ids, top_logprobs = array("f"), array("i"), array("f")
    for at in range(start, len(output)):
        chosen.append(-at - (-at % NUM_IDS) / 64)
        top_ids.extend((output[at] + at + rank) % NUM_IDS for rank in range(num_top))
        top_logprobs.extend(-at - rank / 64 for rank in range(num_top))
    return pb.LogprobColumns(
        chosen=pack_floats(chosen),
        top_ids=pack_ids(top_ids),
        top_logprobs=pack_floats(top_logprobs),
    )


class FakeScheduler(pb_grpc.SchedulerServiceServicer):
    """Serves any number of fronts; `stop` drops them as a dying process would."""

    def __init__(self) -> None:
        self.behavior = Behavior()
        self.seen = Seen()
        self.worker_connected = True
        self.model = MODEL
        self.port = 0
        self._server: grpc.aio.Server | None = None
        self._outboxes: list[asyncio.Queue[pb.AttachResponse]] = []

    async def start(self) -> None:
        """Listens on the port it had before, or on any."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        pb_grpc.add_SchedulerServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Drops all streams at once."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def set_worker(self, *, connected: bool) -> None:
        """The worker comes or goes."""
        self.worker_connected = connected
        for outbox in self._outboxes:
            outbox.put_nowait(self._worker_state())

    def send(self, response: pb.AttachResponse) -> None:
        """Says something to every front."""
        for outbox in self._outboxes:
            outbox.put_nowait(response)

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        self.seen.num_attached += 1
        outbox: asyncio.Queue[pb.AttachResponse] = asyncio.Queue()
        outbox.put_nowait(pb.AttachResponse(welcome=pb.Welcome(epoch=self.seen.num_attached)))
        outbox.put_nowait(self._worker_state())
        self._outboxes.append(outbox)
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        try:
            while True:
                await context.write(await outbox.get())
        finally:
            self._outboxes.remove(outbox)
            reader.cancel()
            await asyncio.wait([reader])

    async def GetStats(self, request: Any, context: Any) -> pb.GetStatsResponse:  # noqa: N802
        stats = pb.GetStatsResponse(
            model=self.model,
            worker_connected=self.worker_connected,
            num_slots=100,
            free=60,
            private=10,
            evictable=20,
            locked=7,
            in_flight=3,
            num_running=len(self.seen.running),
            uptime_ms=5,
        )
        stats.counters["submitted"] = len(self.seen.submits)
        stats.counters["drafted_tokens"], stats.counters["accepted_tokens"] = 9, 8
        stats.peak_rss_bytes["scheduler_svc"] = 1
        return stats

    async def FlushCache(self, request: Any, context: Any) -> pb.FlushCacheResponse:  # noqa: N802
        return pb.FlushCacheResponse(flushed_tokens=42)

    async def DumpTree(  # noqa: N802
        self, request: pb.DumpTreeRequest, context: Any
    ) -> pb.DumpTreeResponse:
        word = array("I", [*"量子".encode()])
        nodes = [
            pb.TreeNode(parent=-1, cache_domain="d"),
            pb.TreeNode(parent=0, token_ids=pack_ids(word), locked=True, hits=2),
            pb.TreeNode(parent=1, token_ids=pack_ids(array("I", [EOS]))),
        ]
        return pb.DumpTreeResponse(nodes=nodes[: request.max_nodes], num_left_out=9)

    def _worker_state(self) -> pb.AttachResponse:
        model = self.model if self.worker_connected else None
        state = pb.WorkerState(connected=self.worker_connected, model=model)
        return pb.AttachResponse(worker_state=state)

    async def _read(self, requests: Any, outbox: asyncio.Queue[pb.AttachResponse]) -> None:
        running: dict[str, asyncio.Task[None]] = {}
        try:
            async for request in requests:
                if request.WhichOneof("body") == "submit":
                    submit = request.submit
                    self.seen.submits.append(submit)
                    task = asyncio.create_task(self._generate(submit, outbox))
                    running[submit.request_id] = task
                else:
                    self.seen.cancels.append(request.cancel.request_id)
                    task = running.get(request.cancel.request_id)
                    if task is not None and self.behavior.honors_cancel:
                        task.cancel()
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)

    async def _generate(self, submit: pb.Submit, outbox: asyncio.Queue[pb.AttachResponse]) -> None:
        said = list(unpack_ids(submit.resume_output_ids, typecode="I"))

        def say(tokens: list[int], ending: Any = 0, num_computed: int = 0) -> None:
            said.extend(tokens)
            logprobs = None
            if submit.sampling.HasField("logprobs"):
                start = len(said) - len(tokens)
                logprobs = logprobs_of(said, start, submit.sampling.logprobs)
            output = pb.Output(
                request_id=submit.request_id,
                token_ids=pack_ids(array("I", tokens)),
                ending=ending,
                cached_tokens=self.behavior.cached_tokens,
                computed_tokens=num_computed,
                logprobs=logprobs,
            )
            outbox.put_nowait(pb.AttachResponse(outputs=pb.Outputs(outputs=[output])))

        answer = self.behavior.answer(submit)
        if answer is not None:
            answer.request_id = submit.request_id
            outbox.put_nowait(pb.AttachResponse(outputs=pb.Outputs(outputs=[answer])))
            return
        if submit.preheat:
            num_computed = len(submit.prompt_ids) // 4 - self.behavior.cached_tokens
            say([], pb.ENDING_PREHEATED, num_computed)
            return
        self.seen.running.add(submit.request_id)
        try:
            if submit.sampling.HasField("prompt_logprobs"):
                await self._score(submit, outbox)
            if not submit.max_tokens:
                say([], pb.ENDING_LENGTH)
                return
            await self._steps(submit, say)
        except asyncio.CancelledError:
            say([], pb.ENDING_CANCELLED)
            raise
        finally:
            self.seen.running.discard(submit.request_id)

    async def _score(self, submit: pb.Submit, outbox: asyncio.Queue[pb.AttachResponse]) -> None:
        """The log probabilities of a prompt, a few tokens at a time."""
        prompt = list(unpack_ids(submit.prompt_ids, typecode="I"))
        for start in range(1, len(prompt), SCORES_PER_STEP):
            while self.behavior.holds_scores and start > 1:
                await asyncio.sleep(0.01)
            known = prompt[: start + SCORES_PER_STEP]
            columns = logprobs_of(known, start, submit.sampling.prompt_logprobs)
            output = pb.Output(request_id=submit.request_id, prompt_logprobs=columns)
            outbox.put_nowait(pb.AttachResponse(outputs=pb.Outputs(outputs=[output])))

    async def _steps(self, submit: pb.Submit, say: Callable[..., None]) -> None:
        prompt = list(unpack_ids(submit.prompt_ids, typecode="I"))
        output = list(unpack_ids(submit.resume_output_ids, typecode="I"))
        seed = submit.sampling.seed if submit.sampling.temperature > 0 else None
        stops = set(submit.stop_token_ids) | (set() if submit.ignore_eos else {EOS})
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + submit.timeout_ms / 1000 if submit.timeout_ms else None
        news: list[int] = []
        while True:
            hold = self.behavior.num_before_hold
            while hold is not None and len(output) >= hold:
                if ends_s is not None and loop.time() >= ends_s:
                    say(news, pb.ENDING_DEADLINE)
                    return
                await asyncio.sleep(0.01)
                hold = self.behavior.num_before_hold
            token = next_token(prompt, output, seed)
            output.append(token)
            news.append(token)
            ending = (
                pb.ENDING_STOP
                if token in stops
                else pb.ENDING_LENGTH
                if len(output) >= submit.max_tokens
                else 0
            )
            if ending and self.behavior.ending_apart:
                say(news)
                news = []
                await asyncio.sleep(0.05)
            if ending or len(news) >= self.behavior.tokens_per_step:
                say(news, ending)
                news = []
                await asyncio.sleep(self.behavior.step_s)
            if ending:
                return
