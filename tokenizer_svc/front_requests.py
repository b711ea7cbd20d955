"""What the front itself knows of a live request when somebody asks why it waits.

The scheduler knows the rest; before a request is submitted, and while the scheduler is away, there
is nobody else to ask.
"""

from protos.errors import UnknownRequestId
from protos.radixd.v1 import admin_pb2 as pb
from tokenizer_svc.live_request import LiveRequest
from tokenizer_svc.live_requests import LiveRequests
from tokenizer_svc.request_owners import RequestOwners
from tokenizer_svc.scheduler_link import SchedulerLink
from tokenizer_svc.tenancy import Caller


class FrontRequests:
    """Looks requests up by the id their client knows."""

    def __init__(self, *, live: LiveRequests, link: SchedulerLink, owners: RequestOwners) -> None:
        self._live = live
        self._link = link
        self._owners = owners

    def name_for_scheduler(self, caller: Caller, request_id: str) -> str:
        """What the scheduler calls a live request; the id itself where it is no such request."""
        live = self._find(caller, request_id)
        return request_id if live is None or not live.wire_id else live.wire_id

    def explain(self, caller: Caller, request_id: str) -> pb.ExplainResponse | None:
        """Why the scheduler has not got it; None: it has, or no request of this id is live."""
        live = self._find(caller, request_id)
        if live is None or live.wire_id:
            return None
        view = pb.RequestView(
            request_id=request_id,
            tenant=self._owners.tenant_of(request_id),
            state=pb.REQUEST_STATE_WAITING,
            output_tokens=len(live.token_ids),
        )
        if live.submission is not None:
            view.prompt_tokens = len(live.submission.prompt_ids)
        if self._link.is_ready:
            summary = "it is in the tokenizer; the scheduler has not got it yet"
        else:
            view.waiting_reason = pb.WAITING_REASON_NO_WORKER
            summary = "it waits in the front for the scheduler and the model worker to be back"
        return pb.ExplainResponse(request=view, summary=summary)

    def leave_out_others(self, caller: Caller, answer: pb.ExplainResponse) -> None:
        """Takes other tenants' requests out of the victims: their ids are their own business."""
        seen = [victim for victim in answer.victims if self._may_see(caller, victim)]
        del answer.victims[:]
        answer.victims.extend(seen)

    def _may_see(self, caller: Caller, victim: pb.VictimScore) -> bool:
        return self._owners.may_see(caller, victim.request_id)

    def _find(self, caller: Caller, request_id: str) -> LiveRequest | None:
        if not self._owners.may_see(caller, request_id):
            return None
        try:
            return self._live.find(request_id)
        except UnknownRequestId:
            return None
