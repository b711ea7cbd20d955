"""GET /v1/sessions and DELETE /v1/sessions/{id}: conversations that are kept warm between turns."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from protos.radixd.v1 import admin_pb2 as pb
from tokenizer_svc.admin_checks import max_sessions
from tokenizer_svc.http.errors import HttpRefusal
from tokenizer_svc.scheduler_questions import SchedulerQuestions
from tokenizer_svc.tenancy import current_caller
from tokenizer_svc.validation import check_session, read_cache_domain


class Sessions:
    """A caller that is bound to a tenant sees and closes its own."""

    def __init__(self, questions: SchedulerQuestions) -> None:
        self._questions = questions

    async def all(self, request: Request) -> ASGIApp:
        """The sessions there are, least recently used first."""
        most = max_sessions(pb.ListSessionsRequest())
        listed = await self._questions.sessions(most, current_caller().sees)
        return JSONResponse(
            {
                "object": "list",
                "data": [_session_body(session) for session in listed.sessions],
                "has_more": bool(listed.num_left_out),
            }
        )

    async def close(self, request: Request) -> ASGIApp:
        """Forgets one; what it kept stays cached like anything else."""
        name = request.path_params["session"]
        check_session(name)
        domain = read_cache_domain(request.query_params.get("cache_domain", ""))
        if not await self._questions.close_session(name, domain, current_caller().sees):
            raise HttpRefusal(
                404, "session_not_found", f"session: there is no {name!r} here", param="session"
            )
        return JSONResponse({"id": name, "object": "session.deleted", "deleted": True})


def _session_body(session: pb.Session) -> dict[str, Any]:
    return {
        "id": session.session,
        "object": "session",
        "tenant": session.tenant,
        "cache_domain": session.cache_domain,
        "num_tokens": session.num_tokens,
        "kept_tokens": session.kept_tokens,
        "expires_in_ms": session.expires_in_ms,
        "num_turns": session.num_turns,
        "hits": session.hits,
    }
