"""Cuts running requests back where no scheduler would, to show that nobody can tell."""

from array import array

from scheduler_svc.core.facts import Facts
from scheduler_svc.core.retraction import RETRACTION_POLICIES, choose_victim
from tests.scheduler_svc.core.harness import Bench


class Records(Bench):
    """A bench that also keeps what log probabilities came, and checks that they fit the tokens."""

    def __init__(self, **config):
        self.chosen: dict[str, list[float]] = {}
        self.top_ids: dict[str, list[int]] = {}
        self.top_logprobs: dict[str, list[float]] = {}
        self.pieces: dict[str, list[list[int]]] = {}
        """Tokens of each output, as a stream carries them."""
        self.first_cached: dict[str, int] = {}
        super().__init__(**config)

    def take(self, outputs):
        for output in outputs:
            name = output.request_id
            if output.token_ids:
                self.pieces.setdefault(name, []).append(list(output.token_ids))
                first = self.first_cached.setdefault(name, output.cached_tokens)
                assert output.cached_tokens == first, "cached tokens are the first admission's"
            if output.logprobs is not None:
                assert len(output.logprobs.chosen) == len(output.token_ids)
                self.chosen.setdefault(name, []).extend(output.logprobs.chosen)
                self.top_ids.setdefault(name, []).extend(output.logprobs.top_ids)
                self.top_logprobs.setdefault(name, []).extend(output.logprobs.top_logprobs)
        super().take(outputs)

    def story(self, request_id):
        """All that a client can see of an ended request."""
        ending = self.endings[request_id]
        return {
            "tokens": self.tokens[request_id],
            "ending": (ending.ending, ending.message),
            "chosen": self.chosen.get(request_id),
            "top_ids": self.top_ids.get(request_id),
            "top_logprobs": self.top_logprobs.get(request_id),
            "scores": self.scores.get(request_id),
        }


class CutBack(Records):
    """After every call one request is cut back, of those that got on since they were cut last.

    Getting on is one more output token, or one more token of the prompt that is scored, so a
    request is cut at most once more than it has of these, and the run ends.  Victims are chosen by
    all policies in turn.
    """

    def __init__(self, *, policies=tuple(RETRACTION_POLICIES), **config):
        super().__init__(**config)
        self.policies = policies
        self.num_cuts = 0
        self.cut_at: dict[str, int] = {}
        """How far a request had got when it was cut last."""

    def cut(self):
        state = self.core.state
        candidates = [
            request
            for request in state.running.values()
            if request.num_outputs + request.num_scored > self.cut_at.get(request.request_id, -1)
        ]
        if not candidates:
            return
        policy = RETRACTION_POLICIES[self.policies[self.num_cuts % len(self.policies)]]
        victim = choose_victim(policy, candidates, Facts(state))
        self.cut_at[victim.request_id] = victim.num_outputs + victim.num_scored
        self.num_cuts += 1
        state.retract(victim, "the test says so")
        self.take([])

    def schedule(self):
        planned = super().schedule()
        self.cut()
        return planned

    def answer(self):
        super().answer()
        self.cut()


def float32(values):
    """As they travel."""
    return list(array("f", values))
