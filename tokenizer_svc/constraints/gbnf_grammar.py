"""From the rules of a GBNF grammar to a grammar the worker follows.

A grammar that does not recurse becomes one regular expression.  One that does is followed
character by character, as the worker's lexer would take the longest piece where the notation means
any: slower, and exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenizer_svc.constraints.form_error import FormError
from tokenizer_svc.constraints.gbnf import (
    Chars,
    Choice,
    Expression,
    Ref,
    Repeat,
    Sequence,
    Text,
)

_Rules = Mapping[str, Expression]


def grammar_from_rules(rules: _Rules) -> str:
    """The rules that `root` needs, in the worker's notation.

    Raises:
        FormError: a rule is missing, or stands for no text that ends.
    """
    if "root" not in rules:
        raise FormError("there is no rule `root`")
    needed = _reachable(rules)
    _refuse_endless(rules, needed)
    recurses = _recurses(rules, needed)
    # Names in capitals are regular expressions to the worker, the others are parsed.
    names = {name: f"{'r' if recurses else 'R'}{index}" for index, name in enumerate(needed)}
    lines = [f"{names[name]}: {_written(rules[name], names)}" for name in needed]
    return "\n".join([f"start: {names['root']}", *lines, ""])


def _references(expression: Expression) -> Iterator[str]:
    waiting = [expression]
    while waiting:
        at = waiting.pop()
        if isinstance(at, Ref):
            yield at.name
        elif isinstance(at, Repeat):
            waiting.append(at.item)
        elif isinstance(at, Sequence | Choice):
            waiting.extend(at.items)


def _reachable(rules: _Rules) -> list[str]:
    found = {"root": None}
    waiting = ["root"]
    while waiting:
        name = waiting.pop()
        for used in _references(rules[name]):
            if used not in rules:
                raise FormError(f"there is no rule `{used}`")
            if used not in found:
                found[used] = None
                waiting.append(used)
    return list(found)


def _refuse_endless(rules: _Rules, needed: list[str]) -> None:
    ending: set[str] = set()
    while True:
        more = {name for name in needed if name not in ending and _ends(rules[name], ending)}
        if not more:
            break
        ending |= more
    endless = [name for name in needed if name not in ending]
    if endless:
        raise FormError(f"rule `{endless[0]}` never ends: each of its texts holds another of them")


def _ends(expression: Expression, ending: set[str]) -> bool:
    """Whether some text of it ends, given the rules of which that is known."""
    if isinstance(expression, Ref):
        return expression.name in ending
    if isinstance(expression, Repeat):
        return expression.least == 0 or _ends(expression.item, ending)
    if isinstance(expression, Sequence):
        return all(_ends(item, ending) for item in expression.items)
    if isinstance(expression, Choice):
        return any(_ends(item, ending) for item in expression.items)
    return True


def _recurses(rules: _Rules, needed: list[str]) -> bool:
    """Whether any rule needs itself: rules that need only finished ones are taken away."""
    uses = {name: set(_references(rules[name])) for name in needed}
    while uses:
        plain = {name for name, used in uses.items() if not used & uses.keys()}
        if not plain:
            return True
        uses = {name: used for name, used in uses.items() if name not in plain}
    return False


def _written(expression: Expression, names: Mapping[str, str]) -> str:
    if isinstance(expression, Text):
        return " ".join(f"/{_hex(ord(character))}/" for character in expression.text) or '""'
    if isinstance(expression, Chars):
        ranges = "".join(f"{_hex(low)}-{_hex(high)}" for low, high in expression.ranges)
        return f"/[{'^' if expression.negated else ''}{ranges}]/"
    if isinstance(expression, Ref):
        return names[expression.name]
    if isinstance(expression, Repeat):
        most = "" if expression.most is None else expression.most
        return f"({_written(expression.item, names)}){{{expression.least},{most}}}"
    written = [_written(item, names) for item in expression.items]
    if isinstance(expression, Choice):
        return "(" + " | ".join(written) + ")"
    return " ".join(written) or '""'


def _hex(character: int) -> str:
    return f"\\x{{{character:x}}}"
