"""What lies in the worker's slots is what the core's books say, token by token.

An answer shows a wrong slot only where its row samples, and a wrong prefix that was computed on
only in whoever finds it cached; this shows both, at once, and names the slot.
"""

from array import array


def check(engine, core, named):
    """Raises AssertionError naming every slot that is wrong.

    named: (row, request) of the plan that was executed and answered last.
    """
    wrong = []
    for row, request in named:
        wrong += _wrong(request.request_id, engine, engine.row_slots(row), request.tokens)
    size = core.config.page_size
    paths = {None: (array("i"), array("i"))}
    for node in core.state.tree.nodes():  # parents before children
        slots, tokens = paths[node.parent]
        own = array("i", [page * size + at for page in node.pages for at in range(size)])
        paths[node] = slots + own, tokens + array("i", node.key)
        wrong += _wrong(f"node {node.serial}", engine, *paths[node], first=len(slots))
    assert not wrong, "\n".join(wrong)


def _wrong(owner, engine, slots, tokens, first=0):
    """What is wrong from position `first` on, where both sides know the token: one that was just
    sampled is in no slot, and one that came too late is in no books."""
    end = min(len(slots), len(tokens))
    slots, wanted = slots[first:end], (tokens[first:end], array("i", range(first, end)))
    found = engine.read(slots)
    if found == wanted:
        return []
    return [
        f"{owner}: slot {slot} should hold (token, position) {should} and holds {does}"
        for slot, should, does in zip(
            slots, zip(*wanted, strict=True), zip(*found, strict=True), strict=True
        )
        if should != does
    ]
