"""Refuses at the door what can never be served.  Pure checks; keeps nothing.

A refusal is a value with the field's name and both numbers, so that its reader can mend it.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_svc.core.messages import Ending, Output, Submission
from scheduler_svc.core.state import NO_TOKENS, SchedulerState


def refuse(state: SchedulerState, submission: Submission) -> Output | None:
    """Why this submission cannot be taken, or None."""
    if submission.request_id in state.live:
        return _refusal(
            submission,
            Ending.REJECTED_DUPLICATE_ID,
            "request_id",
            "a live request has this id",
        )
    return _refuse_tokens(state, submission) or _refuse_size(state, submission)


def clip(state: SchedulerState, submission: Submission) -> Submission:
    """The submission with max_tokens cut to what the model's length leaves."""
    if submission.preheat:
        return replace(submission, max_tokens=0)
    room = state.hello.max_length - len(submission.prompt_ids)
    return replace(submission, max_tokens=min(submission.max_tokens, room))


def _refuse_tokens(state: SchedulerState, submission: Submission) -> Output | None:
    invalid = Ending.REJECTED_INVALID
    if not len(submission.prompt_ids):
        return _refusal(submission, invalid, "prompt", "has no tokens")
    is_scored = submission.sampling.prompt_logprobs >= 0
    if submission.max_tokens < 1 and not (submission.preheat or is_scored):
        message = "must be at least 1, unless log probabilities of the prompt are wanted"
        return _refusal(submission, invalid, "max_tokens", message)
    if submission.preheat and is_scored:
        message = "a preheat reports nothing"
        return _refusal(submission, invalid, "prompt_logprobs", message)
    if submission.preheat and submission.no_store:
        return _refusal(submission, invalid, "no_store", "a preheat that keeps nothing is none")
    if submission.session and (submission.preheat or submission.no_store):
        kind = "a preheat" if submission.preheat else "a request that stores nothing"
        return _refusal(submission, invalid, "session", f"{kind} leaves no tail to keep")
    return _refuse_sampling(state, submission) or _refuse_ids(state, submission)


def _refuse_sampling(state: SchedulerState, submission: Submission) -> Output | None:
    vocab_size, sampling = state.hello.vocab_size, submission.sampling
    alternatives = (
        ("sampling.logprobs", sampling.logprobs),
        ("prompt_logprobs", sampling.prompt_logprobs),
    )
    for field, count in alternatives:
        if count > vocab_size:
            message = f"{count} alternatives of a vocabulary of {vocab_size}"
            return _refusal(submission, Ending.REJECTED_INVALID, field, message)
    for token_id, _ in sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            message = f"token id {token_id} is outside the vocabulary of {vocab_size}"
            return _refusal(submission, Ending.REJECTED_INVALID, "sampling.logit_bias", message)
    return None


def _refuse_ids(state: SchedulerState, submission: Submission) -> Output | None:
    vocab_size = state.hello.vocab_size
    for field in ("prompt_ids", "resume_output_ids", "stop_token_ids"):
        ids = getattr(submission, field)
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            bad = next(token for token in ids if not 0 <= token < vocab_size)
            message = f"token id {bad} is outside the vocabulary of {vocab_size}"
            return _refusal(submission, Ending.REJECTED_INVALID, field, message)
    return None


def _refuse_size(state: SchedulerState, submission: Submission) -> Output | None:
    num_prompt, max_length = len(submission.prompt_ids), state.hello.max_length
    if num_prompt >= max_length:
        message = (
            f"{num_prompt} tokens leave no room for output; the model's length is {max_length}"
        )
        return _refusal(submission, Ending.REJECTED_INVALID, "prompt", message)
    if state.kv.num_pages(num_prompt) > state.pool.num_pages:
        message = f"{num_prompt} tokens can never fit the pool of {state.num_slots} token slots"
        return _refusal(submission, Ending.REJECTED_TOO_LARGE, "prompt", message)
    policy = state.config.tenants.get(submission.tenant)
    if policy is not None and num_prompt > policy.most_share * state.num_slots:
        slots = int(policy.most_share * state.num_slots)
        message = f"{num_prompt} tokens, and tenant {submission.tenant!r} may hold {slots} slots"
        return _refusal(submission, Ending.REJECTED_TOO_LARGE, "prompt", message)
    return _refuse_queue(state, submission)


def _refuse_queue(state: SchedulerState, submission: Submission) -> Output | None:
    num_waiting, limit = state.waiting.num_fresh, state.config.max_waiting
    if submission.preheat:
        num_waiting = state.waiting.num_preheats
    elif submission.resume_output_ids is not None:
        limit *= 2  # its client is being served already
    if num_waiting < limit:
        return None
    # A flood of one tenant must not shut out the others: up to twice the limit, each has a share.
    num_own = state.waiting.num_waiting_of(submission.tenant)
    if num_waiting < 2 * limit and num_own * (state.waiting.num_tenants + 1) < limit:
        return None
    message = f"{num_waiting} requests wait, no more may"
    return _refusal(submission, Ending.REJECTED_QUEUE_FULL, "", message)


def _refusal(submission: Submission, ending: Ending, field: str, message: str) -> Output:
    return Output(
        request_id=submission.request_id,
        token_ids=NO_TOKENS,
        ending=ending,
        field=field,
        message=message,
    )
