"""What waiting orders ask of the rest of the core, as plain tables that a test fills."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_svc.core.messages import Submission
from scheduler_svc.core.radix_node import Namespace
from scheduler_svc.core.request import Request
from scheduler_svc.core.waiting_order import Standing

SECOND = 1_000_000_000


@dataclass
class FakeConfig:
    """The knobs that orders read."""

    weight_prefix: float = 1.0
    weight_age: float = 50.0
    weight_cost: float = 0.5
    policy_seed: int = 0
    most_passes: int = 64
    tenants: Mapping[str, object] = field(default_factory=dict)


@dataclass
class FakeFacts:
    """Facts by request id; unknown ones are cold."""

    config: FakeConfig = field(default_factory=FakeConfig)
    now_ns: int = 0
    everything_fits: bool = False
    num_admitted: int = 0
    cached: dict[str, int] = field(default_factory=dict)
    paths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    services: dict[str, float] = field(default_factory=dict)
    num_lookups: int = 0

    def cached_tokens(self, request):
        self.num_lookups += 1
        return self.cached.get(request.request_id, 0)

    def match_path(self, request):
        self.num_lookups += 1
        return self.paths.get(request.request_id, ())

    def num_passes(self, request):
        return self.num_admitted - request.num_admitted_before

    def standing(self, tenant):
        assert tenant in self.config.tenants, "asked for a tenant without a share"
        return self.standings.get(tenant, Standing.ORDINARY)

    def is_entitled(self, request):
        tenant = request.submission.tenant
        return tenant in self.config.tenants and self.standing(tenant) is Standing.ENTITLED

    def take_as_ordinary(self, tenant):
        self.standings[tenant] = Standing.ORDINARY

    def tenant_service(self, tenant):
        return self.services.get(tenant, 0.0)

    def admit(self, queue, request):
        """What the planner does with a candidate that fits."""
        queue.remove(request)
        self.num_admitted += 1
        tenant = request.submission.tenant
        uncached = request.num_prompt - self.cached.get(request.request_id, 0)
        self.services[tenant] = self.services.get(tenant, 0.0) + uncached


class Arrivals:
    """Makes requests; each arrives a second after the one before unless told otherwise."""

    def __init__(self, facts):
        self.facts = facts
        self.num = 0

    def request(self, name, num_prompt=10, max_tokens=10, *, at_ns=None, **fields):
        self.num += 1
        submission = Submission(
            request_id=name,
            prompt_ids=array("i", range(1, num_prompt + 1)),
            max_tokens=max_tokens,
            **fields,
        )
        return Request(
            submission,
            Namespace._make("" for _ in Namespace._fields),
            arrival=self.num,
            num_admitted=self.facts.num_admitted,
            now_ns=self.num * SECOND if at_ns is None else at_ns,
        )


def names(requests):
    return [request.request_id for request in requests]


def start_order(queue, facts):
    """Admits one request a step until nobody waits."""
    started = []
    while (request := next(queue.candidates(facts), None)) is not None:
        started.append(request.request_id)
        facts.admit(queue, request)
    return started
