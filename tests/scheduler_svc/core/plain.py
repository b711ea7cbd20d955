"""Requests and a page count without a scheduler around them, for policies that only look."""

from array import array

from scheduler_svc.core.messages import Submission
from scheduler_svc.core.radix_node import Namespace
from scheduler_svc.core.request import Request

NAMESPACE = Namespace(*([""] * len(Namespace._fields)))


def plain_request(
    arrival=0, *, prompt=10, outputs=0, max_tokens=50, held=0, pending=0, retractions=0, **fields
):
    """A request with so many prompt and output tokens, which holds so many pages."""
    submission = Submission(
        request_id=f"x{arrival}",
        prompt_ids=array("i", range(prompt)),
        max_tokens=max_tokens,
        **fields,
    )
    request = Request(submission, NAMESPACE, arrival=arrival, num_admitted=0, now_ns=0)
    request.tokens.extend(range(outputs))
    request.pages = array("i", range(held))
    request.num_pending = pending
    request.num_retractions = retractions
    request.is_resuming = retractions > 0
    return request


class PageCount:
    """Counts pages; a request gives back all it holds but `shared` pages."""

    def __init__(self, page_size=1, shared=0):
        self.page_size = page_size
        self.shared = shared

    def num_pages(self, num_tokens):
        return -(-num_tokens // self.page_size)

    def num_pages_held_alone(self, request):
        return max(0, len(request.pages) - self.shared)
