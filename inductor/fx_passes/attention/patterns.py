"""Attention that a program writes out: softmax(q k^T * s + b) v in calls of torch.

In: a captured graph. Out: the same graph (changed in place), where the last GEMM of such a chain
is one call of `inductor.fx_passes.attention.written_attention.written_attention`, which gets the
tensors and what happens between both GEMMs as plain data, and decides while the graph is
recorded. What the chain computes in between must be wanted by nobody else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from inductor.fx_passes.attention.written_attention import WIDE, Step, written_attention

GEMMS = (torch.matmul, operator.matmul, torch.bmm)
VIEWS = frozenset(("transpose", "permute", "swapaxes"))
COPIES = frozenset(("reshape", "contiguous", "flatten"))
MOST_STEPS = 12  # between the scores and their softmax; more are not looked at
WRITES = {operator.setitem} | {
    call for name, call in vars(operator).items() if name[0] == "i" and hasattr(operator, name[1:])
    or name in ("iand", "ior")
}
Match = tuple[fx.Node, Step] | None


def is_indifferent(reader: fx.Node) -> bool:
    """Whether it gives the same for all strides of what it reads: a view shows them to its own
    readers, and to the program where it is returned."""
    if reader.op not in ("call_method", "call_function"):
        return False
    name = reader.target if reader.op == "call_method" else getattr(reader.target, "__name__", "")
    if name in VIEWS:
        return bool(reader.users) and all(map(is_indifferent, reader.users))
    return name in COPIES


def replace_written_attention(gm: fx.GraphModule) -> None:
    """See the top of the file."""
    changed = False
    for node in list(gm.graph.nodes):
        if _is_gemm(node) and node.users and all(map(is_indifferent, node.users)):
            changed |= _replace(gm.graph, node)
    if changed:
        gm.recompile()


def _replace(graph: fx.Graph, node: fx.Node) -> bool:
    """Replace a last GEMM, if a chain to a first one ends there."""
    weights, values = node.args
    chain: list[fx.Node] = []
    steps: list[Step] = []
    operands: list[fx.Node] = []
    at = weights
    while isinstance(at, fx.Node) and not _is_gemm(at):
        found = _step(at, operands) if _only_reader(at) and len(steps) < MOST_STEPS else None
        if found is None:
            return False
        chain.append(at)
        at, step = found
        steps.append(step)
    if not isinstance(at, fx.Node) or not _only_reader(at):
        return False
    if sum(step[0] == "softmax" for step in steps) != 1:
        return False
    if not _may_move(graph, at, node):
        return False
    q, k = at.args
    with graph.inserting_before(node):
        wide = _source(q), _source_of_keys(k)
        if wide[0] is not None and wide[1] is not None:
            source, axes = wide[1]
            q, k = wide[0], graph.call_method("transpose", (source, *axes))
            steps.append(WIDE)
        arguments = (q, k, values, tuple(operands), tuple(reversed(steps)))
        made = graph.call_function(written_attention, arguments)
    made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    for old in (node, *chain, at):
        for unread in [user for user in old.users if _is_off(user)]:
            graph.erase_node(unread)
        graph.erase_node(old)
    return True


def _may_move(graph: fx.Graph, first: fx.Node, last: fx.Node) -> bool:
    """Whether what the chain reads, and the modes that it runs in, are the same at its end."""
    moved = {first}
    for node in first.all_input_nodes:  # conversions, see `WIDE`
        while node.op == "call_method" and node.target in ("to", "float", "transpose"):
            moved.add(node)
            node = node.args[0]  # type: ignore[assignment]
    nodes = list(graph.nodes)
    between = nodes[min(map(nodes.index, moved)) : nodes.index(last)]
    return not any(map(has_effect, between))


def has_effect(node: fx.Node) -> bool:
    """Whether a call may write a tensor or change a mode."""
    if node.op not in ("call_function", "call_method") or _is_off(node):
        return False
    if not node.users or node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    if node.target in vars(operator).values():
        return node.target in WRITES
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return str(name).endswith("_") and name != "__getitem__"


def _source(node: Any) -> fx.Node | None:
    """What a node converts to float32."""
    found = _converted(node, []) if node.target in ("to", "float") else None
    return found[0] if found is not None and found[1] == ("to", torch.float32) else None


def _source_of_keys(node: Any) -> tuple[fx.Node, tuple[Any, ...]] | None:
    """The same for what is transposed then, and the axes."""
    if node.op != "call_method" or node.target != "transpose" or node.kwargs:
        return None
    source = _source(node.args[0]) if isinstance(node.args[0], fx.Node) else None
    return None if source is None else (source, node.args[1:])


def _is_gemm(node: fx.Node) -> bool:
    return (
        node.op == "call_function" and node.target in GEMMS and not node.kwargs
        and len(node.args) == 2 and all(isinstance(arg, fx.Node) for arg in node.args)
    )  # fmt: skip


def _only_reader(node: fx.Node) -> bool:
    return sum(not _is_off(user) for user in node.users) == 1


def _is_off(node: fx.Node) -> bool:
    """A dropout that does nothing, and that nothing reads."""
    return not node.users and _is_identity(node)


def _is_identity(node: fx.Node) -> bool:
    if node.target is not torch.nn.functional.dropout:
        return False
    p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return bool(p == 0.0 or training is False)


def _step(node: fx.Node, operands: list[fx.Node]) -> Match:
    """What a node reads and what it does with that; None if that is no step of attention.
    Tensors that it needs besides join `operands`."""
    if node.op not in ("call_function", "call_method"):
        return None
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    reader = STEPS.get(str(name))
    return None if reader is None else reader(node, operands)


def _scaled(name: str) -> Callable[[fx.Node, list[fx.Node]], Match]:
    def read(node: fx.Node, operands: list[fx.Node]) -> Match:
        if node.kwargs or len(node.args) != 2:
            return None
        first, second = node.args
        if isinstance(first, (int, float)) and name == "mul":
            first, second = second, first
        if not isinstance(first, fx.Node) or type(second) not in (int, float):
            return None
        return first, (name, float(second))  # type: ignore[arg-type]

    return read


def _added(node: fx.Node, operands: list[fx.Node]) -> Match:
    """The scores are what a GEMM leads to, with nothing but steps between."""
    if node.kwargs or len(node.args) != 2 or not all(isinstance(a, fx.Node) for a in node.args):
        return None
    first, second = node.args
    if not _leads_to_gemm(first):
        first, second = second, first
    if not _leads_to_gemm(first) or first is second:
        return None
    operands.append(second)  # type: ignore[arg-type]
    return first, ("add", len(operands) - 1)  # type: ignore[return-value]


def _leads_to_gemm(node: Any) -> bool:
    for _ in range(MOST_STEPS):
        if not isinstance(node, fx.Node) or not _only_reader(node):
            return False
        if _is_gemm(node):
            return True
        found = _step(node, [])
        if found is None:
            return False
        node = found[0]
    return False


def _bent(node: fx.Node, operands: list[fx.Node]) -> Match:
    if node.kwargs or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0], ("tanh",)


def _filled(node: fx.Node, operands: list[fx.Node]) -> Match:
    """`masked_fill(scores, mask, number)`."""
    if node.kwargs or len(node.args) != 3:
        return None
    scores, mask, value = node.args
    if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node):
        return None
    if type(value) not in (int, float):
        return None
    operands.append(mask)
    return scores, ("fill", len(operands) - 1, float(value), -1)  # type: ignore[arg-type]


def _chosen(node: fx.Node, operands: list[fx.Node]) -> Match:
    """`where(mask, scores, number)`; the number may be a tensor that the program makes of one."""
    if node.kwargs or len(node.args) != 3:
        return None
    mask, scores, value = node.args
    if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node):
        return None
    number = _number_of(value)
    if number is None:
        return None
    operands.append(mask)
    place = len(operands) - 1
    if not isinstance(value, fx.Node):
        return scores, ("where", place, number, -1)
    operands.append(value)
    return scores, ("where", place, number, place + 1)


def _number_of(value: Any) -> float | None:
    if isinstance(value, fx.Node):
        is_made = value.target is torch.tensor and len(value.args) == 1
        value = value.args[0] if is_made else None
    return float(value) if type(value) in (int, float) else None


def _converted(node: fx.Node, operands: list[fx.Node]) -> Match:
    first, *rest = node.args
    if node.target == "float" and not rest and not node.kwargs:
        return first, ("to", torch.float32)  # type: ignore[return-value]
    dtype = rest[0] if len(rest) == 1 and not node.kwargs else node.kwargs.get("dtype")
    if not isinstance(dtype, torch.dtype) or len(rest) + len(node.kwargs) != 1:
        return None
    return first, ("to", dtype)  # type: ignore[return-value]


def _softmax(node: fx.Node, operands: list[fx.Node]) -> Match:
    first, *rest = node.args
    if len(rest) > 1 or not node.kwargs.keys() <= {"dim", "dtype", "_stacklevel"}:
        return None
    dim = rest[0] if rest else node.kwargs.get("dim")
    if dim != -1 or not isinstance(first, fx.Node):
        return None
    return first, ("softmax", node.kwargs.get("dtype"))  # type: ignore[return-value]


def _same(node: fx.Node, operands: list[fx.Node]) -> Match:
    if not _is_identity(node) or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0], ("same",)


STEPS: dict[str, Callable[[fx.Node, list[fx.Node]], Match]] = {
    "mul": _scaled("mul"), "truediv": _scaled("div"), "div": _scaled("div"), "add": _added,
    "iadd": _added, "tanh": _bent, "masked_fill": _filled, "where": _chosen, "to": _converted,
    "type": _converted, "float": _converted, "softmax": _softmax, "dropout": _same,
}  # fmt: skip
