"""Checks at the door: the form of an output, as far as sizes go.

Whether it can be met is seen where it is compiled.
"""

from protos.errors import InvalidRequest
from protos.radixd.v1 import inference_pb2 as pb
from tokenizer_svc.field_checks import check_count, check_size
from tokenizer_svc.generation_request import Constraint

MAX_CONSTRAINT_BYTES = 256 << 10
MAX_CHOICES = 1024
MAX_CHOICE_BYTES = 1024


def read_constraint(constraint: pb.Constraint) -> Constraint:
    """The form.

    Raises:
        InvalidRequest: none, an empty one, or one that is too large; names the field.
    """
    kind = constraint.WhichOneof("form")
    if kind is None:
        raise InvalidRequest(
            "constraint", "one of json_schema, json_object, regex, ebnf and choice is needed"
        )
    field = f"constraint.{kind}"
    if kind == "json_object":
        if not constraint.json_object:
            raise InvalidRequest(field, "false says nothing; leave the constraint out")
        return Constraint(kind=kind)
    if kind == "choice":
        return Constraint(kind=kind, choices=_choices(constraint.choice, f"{field}.texts"))
    text = getattr(constraint, kind)
    if not text:
        raise InvalidRequest(field, "empty")
    check_size(text, field, MAX_CONSTRAINT_BYTES)
    return Constraint(kind=kind, text=text)


def _choices(choices: pb.Choices, field: str) -> tuple[str, ...]:
    if not choices.texts:
        raise InvalidRequest(field, "empty; at least one text is needed")
    check_count(choices.texts, field, "texts", most=MAX_CHOICES)
    room = MAX_CONSTRAINT_BYTES
    for i, text in enumerate(choices.texts):
        where = f"{field}[{i}]"
        if not text:
            raise InvalidRequest(where, "empty")
        room -= check_size(text, where, min(room, MAX_CHOICE_BYTES))
    return tuple(choices.texts)
