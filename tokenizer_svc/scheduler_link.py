"""The one stream to the scheduler: every request of this front goes out and comes back on it.

When the stream breaks, requests stay: on the next one each is submitted again with the tokens
that have already come, so that its client notices only a pause.  Knows tokens, no text.
"""

import asyncio
import contextlib
import random
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
import structlog

from protos.errors import InternalFault, RadixdError, RequestCancelled, Unavailable, WireError
from protos.plan import SamplingParams
from protos.radixd.scheduler.v1 import scheduler_pb2 as pb
from protos.radixd.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from protos.wire import pack_floats, pack_ids, unpack_ids
from radixd.chassis.grpc_server import MAX_MESSAGE_BYTES
from tokenizer_svc.live_request import LiveRequest, Outcome, Submission
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.prompt_scores import PromptScores
from tokenizer_svc.served_model import OwnVocabulary, ServedModel, mismatch, served_model
from tokenizer_svc.token_log import read_logprobs

EXPIRY_GRACE_S = 0.5
"""How long after a deadline the front waits for the scheduler to say so before it does itself."""
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0

log = structlog.get_logger()


class SchedulerLink:
    """Keeps the stream up, and knows whether requests can be served now."""

    def __init__(
        self, stub: pb_grpc.SchedulerServiceStub, live: LiveRequests, *, own: OwnVocabulary
    ) -> None:
        """A worker whose model cannot be the one of `own` is as good as away."""
        self._stub = stub
        self._live = live
        self._own = own
        self._outbox: deque[pb.AttachRequest] = deque()
        """Empty while no stream is up: what is live is submitted anew on the next."""
        self._outbox_filled = asyncio.Event()
        self._waiting: dict[str, LiveRequest] = {}
        """Requests in `wait_ready`, by id."""
        self._attached = False
        self._worker_connected = False
        self.state_changed = asyncio.Event()
        """Set on every change of `is_ready`; whoever follows it clears it."""
        self.model: ServedModel | None = None
        """The last model announced; kept while the worker is away."""
        self._mismatch: str | None = None

    @property
    def is_ready(self) -> bool:
        """Scheduler and worker are both there, and the worker's model is the front's."""
        return self._attached and self._worker_connected and self._mismatch is None

    async def run(self) -> None:
        """Attaches to the scheduler, again and again, until cancelled."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            started_s = time.monotonic()
            try:
                await self._attach()
            except grpc.aio.AioRpcError as error:
                log.debug("attach_failed", code=error.code().name, details=error.details())
            except Exception:
                # A defect must not end the link: every request hangs on it.
                log.exception("link_failed")
            finally:
                self._detached()
            if time.monotonic() - started_s > _MAX_BACKOFF_S:
                backoff_s = _FIRST_BACKOFF_S
            # Spread, so that several fronts do not come back in step.
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def wait_ready(self, live: LiveRequest, *, until_s: float) -> ServedModel:
        """The model, once requests can be served; at once when they can be now.

        Raises:
            Unavailable: not by `until_s` (on the event loop's clock), or at once when the worker
                serves another model than the front.
            RequestCancelled: the request was cancelled meanwhile.
            RadixdError: it was ended with this error meanwhile.
        """
        self._waiting[live.request_id] = live
        try:
            async with asyncio.timeout_at(until_s):
                while not self.is_ready and live.outcome is None:
                    if self._mismatch is not None:
                        raise Unavailable(self._mismatch)
                    await live.changed()
        except TimeoutError:
            away = "model worker" if self._attached else "scheduler"
            raise Unavailable(f"the {away} is away; try again later") from None
        finally:
            del self._waiting[live.request_id]
        if isinstance(live.outcome, RadixdError):
            raise live.outcome
        if live.outcome is not None:
            raise RequestCancelled("the request was cancelled before it could start")
        assert self.model is not None
        return self.model

    def submit(self, live: LiveRequest, submission: Submission) -> None:
        """Sends a request off; what comes of it is in `live`."""
        if live.outcome is not None:
            return
        live.submission = submission
        if submission.sampling.prompt_logprobs >= 0:
            live.scores = PromptScores(
                num_prompt=len(submission.prompt_ids), num_top=submission.sampling.prompt_logprobs
            )
        if submission.deadline_s is not None:
            live.expiry = asyncio.get_running_loop().call_at(
                submission.deadline_s + EXPIRY_GRACE_S, self._expire, live
            )
        if self._attached:
            self._send_submit(live)

    def cancel(self, live: LiveRequest, outcome: Outcome | RadixdError) -> None:
        """Ends a request from this side, now; the scheduler is told, and not waited for."""
        if live.wire_id:
            finished = isinstance(outcome, Outcome) and outcome.ending == pb.ENDING_STOP
            cancel = pb.Cancel(request_id=live.wire_id, finished=finished)
            self._send(pb.AttachRequest(cancel=cancel))
            self._live.end_attempt(live)
        live.end(outcome)

    def close(self, live: LiveRequest) -> None:
        """Forgets a request whose handler is done; the scheduler is told unless it knows."""
        if live.expiry is not None:
            live.expiry.cancel()
            live.expiry = None
        self.cancel(live, Outcome(ending=pb.ENDING_CANCELLED))
        self._live.close(live)

    def fail_all(self, error: RadixdError) -> None:
        """Ends every live request with this error."""
        for live in self._live.all():
            self.cancel(live, error)

    async def _attach(self) -> None:
        # It waits for the connection, which is tried for more often than a new call would be.
        call = self._stub.Attach(wait_for_ready=True)
        writer = asyncio.create_task(self._write(call))
        try:
            async for response in call:
                self._handle(response)
        finally:
            writer.cancel()
            call.cancel()
            await asyncio.wait([writer])

    async def _write(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        # Errors of the stream come up in the reader; here they only end the writing.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._outbox_filled.wait()
                self._outbox_filled.clear()
                while self._outbox:
                    await call.write(self._outbox.popleft())

    def _handle(self, response: pb.AttachResponse) -> None:
        kind = response.WhichOneof("body")
        if kind == "outputs":
            self._take_outputs(response.outputs.outputs)
        elif kind == "worker_state":
            self._take_worker_state(response.worker_state)
        elif kind == "welcome":
            self._welcomed(response.welcome)

    def _welcomed(self, welcome: pb.Welcome) -> None:
        self._attached = True
        log.info("scheduler_attached", epoch=f"{welcome.epoch:016x}", num_live=len(self._live))
        for live in self._live.submitted():
            self._send_submit(live)
        self._state_changed()

    def _detached(self) -> None:
        if self._attached:
            log.warning("scheduler_lost", num_live=len(self._live))
        self._attached = self._worker_connected = False
        self._mismatch = None
        self._outbox.clear()
        for live in self._live.submitted():
            self._live.end_attempt(live)
        self._state_changed()

    def _take_worker_state(self, state: pb.WorkerState) -> None:
        self._worker_connected = state.connected
        self._mismatch = None
        if state.connected:
            self.model = served_model(state.model)
            self._mismatch = mismatch(self._own, self.model)
        log.info("worker_state", connected=state.connected, model=state.model.model_id)
        if self._mismatch is not None:
            log.error("model_mismatch", problem=self._mismatch)
        elif state.connected and state.model.model_id != self._own.model_id:
            # Perhaps one model under two names; perhaps another one with as many tokens.
            log.warning("model_names_differ", front=self._own.model_id, worker=state.model.model_id)
        self._state_changed()

    def _take_outputs(self, outputs: Sequence[pb.Output]) -> None:
        # More than one of a request: we are behind, and tell of several steps at once.
        is_behind = len(outputs) > self._live.num_attempts_out
        untold: dict[LiveRequest, None] = {}
        for output in outputs:
            live = self._live.by_wire_id(output.request_id)
            if live is None:
                continue  # news of an attempt that is over
            self._take_output(live, output)
            if is_behind:
                untold[live] = None
            else:
                live.tell()
        for live in untold:
            live.tell()

    def _take_output(self, live: LiveRequest, output: pb.Output) -> None:
        try:
            self._take_tokens(live, output)
        except WireError as error:
            log.error("output_unusable", request_id=live.request_id, problem=str(error))
            self.cancel(live, InternalFault("the scheduler sent tokens that cannot be right"))
            return
        if output.ending:
            self._live.end_attempt(live)
            if live.cached_tokens is None:
                live.cached_tokens = output.cached_tokens
            live.end(_outcome(output))

    def _take_tokens(self, live: LiveRequest, output: pb.Output) -> None:
        # Every token comes by here.
        submission, scores = live.submission, live.scores
        assert submission is not None
        token_ids = unpack_ids(output.token_ids, typecode="I")
        vocab_size = 0 if self.model is None else self.model.vocab_size
        if token_ids and (
            max(token_ids) >= vocab_size
            or len(live.token_ids) + len(token_ids) > submission.max_tokens
        ):
            raise WireError("tokens outside the vocabulary, or more than were asked for")
        if output.HasField("prompt_logprobs"):
            _take_scores(live, output.prompt_logprobs, vocab_size)
        if scores is not None and token_ids and not scores.is_complete:
            raise WireError("a token before all log probabilities of the prompt")
        logprobs = None
        if token_ids and submission.sampling.logprobs >= 0:
            logprobs = read_logprobs(
                output.logprobs,
                num_tokens=len(token_ids),
                num_top=submission.sampling.logprobs,
                vocab_size=vocab_size,
            )
        live.receive(token_ids, cached_tokens=output.cached_tokens, logprobs=logprobs)

    def _send_submit(self, live: LiveRequest) -> None:
        assert live.submission is not None
        submission, scores = live.submission, live.scores
        has_all = bool(live.token_ids) or (scores is not None and scores.is_complete)
        if has_all and len(live.token_ids) >= submission.max_tokens:
            # Everything came but the ending.
            live.end(Outcome(ending=pb.ENDING_LENGTH))
            return
        if scores is not None and not scores.is_complete:
            scores.restart()
        wire_id = self._live.start_attempt(live)
        message = pb.AttachRequest(submit=_submit_message(wire_id, live))
        num_bytes = message.ByteSize()
        if num_bytes > MAX_MESSAGE_BYTES:
            # Sent, it would end the stream, and come again on the next one, for ever.
            self._live.end_attempt(live)
            live.end(_too_large(num_bytes))
            return
        self._send(message)

    def _send(self, message: pb.AttachRequest) -> None:
        if self._attached:
            self._outbox.append(message)
            self._outbox_filled.set()

    def _expire(self, live: LiveRequest) -> None:
        if live.outcome is None:
            self.cancel(live, Outcome(ending=pb.ENDING_DEADLINE, message="the deadline passed"))

    def _state_changed(self) -> None:
        self.state_changed.set()
        for live in self._waiting.values():
            live.wake()


def _too_large(num_bytes: int) -> Outcome:
    text = f"with it, the request takes {num_bytes} bytes on its way; at most {MAX_MESSAGE_BYTES}"
    return Outcome(ending=pb.ENDING_REJECTED_INVALID, field="prompt", message=text)


def _outcome(output: pb.Output) -> Outcome:
    return Outcome(
        ending=output.ending,
        message=output.message,
        field=output.field,
        computed_tokens=output.computed_tokens,
        pin_id=output.pin_id,
        pinned_tokens=output.pinned_tokens,
        pin_error=output.pin_error,
    )


def _submit_message(wire_id: str, live: LiveRequest) -> pb.Submit:
    submission = live.submission
    assert submission is not None
    timeout_ms = 0
    if submission.deadline_s is not None:
        left_s = submission.deadline_s - asyncio.get_running_loop().time()
        timeout_ms = max(1, int(left_s * 1000))
    return pb.Submit(
        request_id=wire_id,
        prompt_ids=pack_ids(submission.prompt_ids),
        sampling=sampling_message(_still_wanted(live, submission.sampling)),
        max_tokens=submission.max_tokens,
        stop_token_ids=submission.stop_token_ids,
        ignore_eos=submission.ignore_eos,
        cache_domain=submission.cache_domain,
        no_store=submission.no_store,
        timeout_ms=timeout_ms,
        preheat=submission.preheat,
        resume_output_ids=pack_ids(live.token_ids),
        tenant=submission.tenant,
        priority=submission.priority,
        workload=submission.workload,
        client_request_id=live.request_id,
        session=submission.session,
        pin=submission.pin,  # type: ignore[arg-type]
        pin_ttl_ms=submission.pin_ttl_ms,
    )


def _still_wanted(live: LiveRequest, sampling: SamplingParams) -> SamplingParams:
    """Without the log probabilities of the prompt where they are all here: it may be cached now."""
    has_scores = live.scores is not None and live.scores.is_complete
    return replace(sampling, prompt_logprobs=-1) if has_scores else sampling


def _take_scores(live: LiveRequest, columns: pb.LogprobColumns, vocab_size: int) -> None:
    if live.scores is None:
        raise WireError("log probabilities of a prompt that nobody asked for")
    num_tokens, num_top = len(columns.chosen) // 4, live.scores.num_top
    live.scores.extend(
        read_logprobs(columns, num_tokens=num_tokens, num_top=num_top, vocab_size=vocab_size)
    )


def sampling_message(sampling: SamplingParams) -> pb.Sampling:
    """How a request samples, in the words of the internal schema."""
    message = pb.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        min_tokens=sampling.min_tokens,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        grammar=sampling.grammar,
    )
    if sampling.repetition_penalty != 1.0:
        message.repetition_penalty = sampling.repetition_penalty
    if sampling.logprobs >= 0:
        message.logprobs = sampling.logprobs
    if sampling.prompt_logprobs >= 0:
        message.prompt_logprobs = sampling.prompt_logprobs
    if sampling.logit_bias:
        message.bias_ids = pack_ids(array("I", [token_id for token_id, _ in sampling.logit_bias]))
        message.biases = pack_floats(array("f", [bias for _, bias in sampling.logit_bias]))
    return message
