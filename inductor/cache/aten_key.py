"""The key of a functional ATen graph, for programs whose captured graph has none.

In: an ATen graph of static sizes, with fakes of its values, and the stage that is about to compile
it. Out: the parts of a key, as texts; or `Uncacheable`. A program with wrapper subclasses, autograd
functions or operators of its own runs code of these where it is recorded, which no key can hold;
what comes out of that is a graph of plain tensors, and nothing below reads anything else. So all of
the graph is in the key: each node's
name, operator and arguments, each fake with its memory, each mark of an earlier stage, and what
constants hold, since stages may compute with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.aot.plain_graphs import Rows, rows_of
from dynamo.aot.records import Unsupported
from dynamo.graph_operators.operator_texts import text_of_operator
from dynamo.store.records import Uncacheable
from inductor.cache.graph_key import OWN, parts_around, text_of_function, text_of_value

OPERATORS = OWN | {"_c10d_functional"}  # with torch's collectives, whose groups are in the key
SHOWN_ONLY = "stack_trace"  # what a stage keeps of it is cached as positions of nodes
LARGEST = 1 << 20  # bytes of a constant


def parts_of_aten(
    module: fx.GraphModule, stage: str, examples: Sequence[Any], compiler: str
) -> dict[str, str]:
    """The parts of the key, under the present modes and settings.

    stage: what compiles the graph, and what it knows beside. examples: the tensors at hand, where
    it looks at how they lie in memory. compiler: of C++ code. Errors: Uncacheable.
    """
    try:
        rows = rows_of(module)
    except Unsupported as refusal:
        raise Uncacheable(f"the graph holds {refusal.reason}") from None
    values = module.meta.get("values")
    return {
        "stage": f"{stage}, values {values}",
        "constants": _text_of_constants(rows.constants),
        **parts_around(_text_of_rows(rows), examples, compiler),
    }


def _text_of_rows(rows: Rows) -> str:
    lines = []
    for op, name, target, args, kwargs, meta in rows.nodes:
        function = _text_of_function(target) if op == "call_function" else str(target)
        lines.append(f"{op} {name} {function} {_text(args)} {_text(kwargs)} {_marks(meta)}")
    lines += map(_text, rows.fakes)
    return "\n".join([*lines, _text(rows.storages)])


def _text_of_function(function: Any) -> str:
    """Of an operator of the program all that is read of it; how its results look, the fakes say."""
    is_operator = isinstance(function, torch._ops.OpOverload)
    if is_operator and function.namespace not in OPERATORS:
        return text_of_operator(function)
    return text_of_function(function, OPERATORS)


def _text(value: Any) -> str:
    return text_of_value(value, {})


def _marks(meta: Mapping[str, Any]) -> str:
    return ", ".join([f"{name} {_text(mark)}" for name, mark in sorted(meta.items())
                      if name != SHOWN_ONLY])  # fmt: skip


def _text_of_constants(constants: Mapping[str, Any]) -> str:
    """With which of them are one object: a record names it once."""
    objects: dict[int, int] = {}
    return "\n".join([
        f"{name} {objects.setdefault(id(value), len(objects))} {_text_of_constant(value)}"
        for name, value in constants.items()
    ])  # fmt: skip


def _text_of_constant(value: Any) -> str:
    if type(value) is not torch.Tensor:
        raise Uncacheable(f"the graph holds a {type(value).__name__}")
    return (f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device} "
            f"{value.storage_offset()} {value.requires_grad} "
            f"{hashlib.sha256(content_of(value)).hexdigest()}")  # fmt: skip


def content_of(value: torch.Tensor) -> bytes:
    """The elements in order. Errors: Uncacheable for a tensor that is no small plain constant."""
    plain = value.layout is torch.strided and value.device.type in ("cpu", "cuda")
    flags = (value.is_quantized, value.is_conj(), value.is_neg(), value._is_zerotensor())
    if not plain or any(flags):
        raise Uncacheable(f"the graph holds a tensor on {value.device}, {value.layout}")
    if value.nbytes > LARGEST:
        raise Uncacheable(f"the graph holds a constant of {value.nbytes} bytes")
    with torch.no_grad():
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return content.tobytes()


def constants_of(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that the graph reads beside its inputs, by name."""
    names = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    return {name: getattr(module, name) for name in sorted(names)}
