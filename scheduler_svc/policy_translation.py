"""Policies of the public schema to changes of the core's configuration and back.

The names of the fields are the same on both sides; what a value may be is the core's to say.
"""

import inspect
from collections.abc import Mapping

from protos.errors import InvalidRequest
from protos.radixd.v1 import policy_pb2
from scheduler_svc.core.config import CHANGEABLE, POLICY_NAMES, SchedulerConfig
from scheduler_svc.translation import MAX_WORKLOAD_CHARACTERS

_FIELD = "policies"


def changes_from_proto(policies: policy_pb2.Policies) -> dict[str, object]:
    """The fields that are set, by name.

    Raises:
        InvalidRequest: names the field when a workload class has no usable name.
    """
    changes: dict[str, object] = {}
    for descriptor, value in policies.ListFields():
        changes[descriptor.name] = dict(value) if descriptor.name == "chunk_sizes" else value
    for workload in policies.chunk_sizes:
        if not 1 <= len(workload) <= MAX_WORKLOAD_CHARACTERS:
            text = f"a class takes 1 to {MAX_WORKLOAD_CHARACTERS} characters"
            raise InvalidRequest(f"{_FIELD}.chunk_sizes", text)
    return changes


def refusal(error: ValueError) -> InvalidRequest:
    """The core's "field: problem" as an error of the request."""
    name, _, problem = str(error).partition(": ")
    return InvalidRequest(f"{_FIELD}.{name}", problem)


def policies_to_proto(config: SchedulerConfig) -> policy_pb2.Policies:
    """Every policy in force."""
    policies = policy_pb2.Policies()
    for name in CHANGEABLE:
        value = getattr(config, name)
        if isinstance(value, Mapping):
            policies.chunk_sizes.update(value)
        else:
            setattr(policies, name, value)
    return policies


def families_to_proto() -> list[policy_pb2.PolicyFamily]:
    """Every name that may be set, with the paragraph that explains it."""
    return [
        policy_pb2.PolicyFamily(
            name=field,
            options=[
                policy_pb2.PolicyOption(name=name, summary=_paragraph(explained))
                for name, explained in options.items()
            ],
        )
        for field, options in POLICY_NAMES.items()
    ]


def difference(old: SchedulerConfig, new: SchedulerConfig) -> tuple[dict[str, object], ...]:
    """What changed, by name: the values before and those after, as a log takes them."""
    names = [name for name in CHANGEABLE if getattr(old, name) != getattr(new, name)]
    return tuple({name: _plain(getattr(config, name)) for name in names} for config in (old, new))


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _paragraph(explained: object) -> str:
    text = explained if isinstance(explained, str) else inspect.cleandoc(explained.__doc__ or "")
    return " ".join(text.split())
