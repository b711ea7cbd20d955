"""`radixd tree`: draws the radix tree of cached prefixes; what two prompts share stands once."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from protos.radixd.v1 import admin_pb2
from radixd.cli.options import takes
from radixd.cli.server_options import ServerOptions
from radixd.cli.terminal import Json, out, print_json, snippet

MAX_DRAWN_DEPTH = 16
"""Deeper nodes are drawn at this depth with their true one written beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions(ServerOptions):
    """What the user typed."""

    max_nodes: Annotated[int, typer.Option(min=1, help="Most nodes shown.")] = 1000
    json: Json = False


@takes(TreeOptions)
def tree(options: TreeOptions) -> None:
    """Draw the tree of cached prefixes."""
    with options.connect() as client:
        dump = client.dump_tree(options.max_nodes)
    if options.json:
        print_json(
            {"nodes": [_node_dict(n) for n in dump.nodes], "num_left_out": dump.num_left_out}
        )
        return
    for root in draw(dump, width=out.width):
        out.print(root)
    if not any(node.parent >= 0 for node in dump.nodes):
        out.print("nothing is cached", style="dim")
    if dump.num_left_out:
        out.print(f"{dump.num_left_out} more nodes; --max-nodes shows them", style="dim")


def draw(dump: admin_pb2.DumpTreeResponse, *, width: int) -> list[Tree]:
    """The dump as trees, one for each cache domain; parents come before children in it."""
    roots: list[Tree] = []
    branches: list[Tree] = []
    anchors: list[int] = []  # where the children of each node are drawn
    depths: list[int] = []
    totals = _tokens_below(dump)
    for position, node in enumerate(dump.nodes):
        if node.parent < 0:
            branch = Tree(_root_label(node, totals[position]))
            roots.append(branch)
            depths.append(0)
            anchors.append(position)
        else:
            depth = depths[node.parent] + 1
            branch = branches[anchors[node.parent]].add(_label(node, depth, width))
            depths.append(depth)
            anchors.append(position if depth < MAX_DRAWN_DEPTH else anchors[node.parent])
        branches.append(branch)
    return roots


def _tokens_below(dump: admin_pb2.DumpTreeResponse) -> list[int]:
    totals = [len(node.token_ids) for node in dump.nodes]
    for position in range(len(totals) - 1, -1, -1):
        parent = dump.nodes[position].parent
        if parent >= 0:
            totals[parent] += totals[position]
    return totals


def _root_label(node: admin_pb2.TreeNode, num_tokens: int) -> Text:
    domain = snippet(node.cache_domain, 40) if node.cache_domain else "common domain"
    owner = f", tenant {snippet(node.tenant, 40)}" if node.tenant else ""
    return Text.assemble((domain + owner, "bold"), (f"  {num_tokens} tokens", "dim"))


def _label(node: admin_pb2.TreeNode, depth: int, width: int) -> Text:
    num_tokens = len(node.token_ids)
    facts = f"  {_count(num_tokens, 'token')}, {_count(node.hits, 'hit')}"
    if depth > MAX_DRAWN_DEPTH:
        facts += f", depth {depth}"
    room = max(16, width - 4 * min(depth, MAX_DRAWN_DEPTH) - len(facts) - 4)
    lock = (" 🔒", "yellow") if node.locked else ""
    return Text.assemble((snippet(node.text, room), "green"), (facts, "dim"), lock)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _node_dict(node: admin_pb2.TreeNode) -> dict[str, Any]:
    return {
        "parent": node.parent,
        "num_tokens": len(node.token_ids),
        "token_ids": list(node.token_ids),
        "text": node.text,
        "locked": node.locked,
        "hits": node.hits,
        "cache_domain": node.cache_domain,
        "tenant": node.tenant,
    }
