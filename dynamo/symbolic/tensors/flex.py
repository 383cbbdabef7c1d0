"""`torch.nn.attention.flex_attention`: one operation of the graph, with the functions it is given.

torch's own Python code of `flex_attention` and of block masks is traced; what remains is the call
of its operator. `score_mod` and `mask_mod` are traced as eager runs them: `torch.vmap` over batch,
head, query and key, so that each is a graph over whole tensors of scores. In them, `x[i]` with
a tensor `i` without dimensions picks an element. What eager would refuse breaks the graph before
the call, as do functions that change something.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx

from dynamo.base.errors import Break
from dynamo.graph_operators.flex_calls import TABLES, FlexCall, FlexFacts, each_head
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import first_rule, late_rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar, inline_polyfill
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.checkpointing import check_unseen
from dynamo.symbolic.tensors.flex_polyfills import (
    dense_mask,
    empty_block_mask,
    over_all,
    without_annotation,
)
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar

CODE = "call_of_unknown_function"
INDICES = (torch.int64, torch.int32)
HALF = (torch.float16, torch.bfloat16)
KINDS = (*HALF, torch.float32, torch.float64)
# Positions in `BlockMask.as_tuple()`.
FIRST_TABLE, QUERY_INDICES, SIZES, MASK_MOD = 2, 7, -3, -1


class FlexState:
    """depth: how many functions of scores are being traced, one inside of another."""

    def __init__(self, trace: Evaluation) -> None:
        self.depth = 0


@contextmanager
def function_of_scores(tx: Frame) -> Iterator[None]:
    """Around the trace of a `score_mod` or `mask_mod`."""
    state = tx.trace.state(FlexState)
    state.depth += 1
    try:
        yield
    finally:
        state.depth -= 1


# -- rules -----------------------------------------------------------------------------------------


@late_rule("flex_attention", "_create_empty_block_mask")
def make_empty_block_mask(tx: Frame, query: Var, key: Var) -> Var:
    return inline_polyfill(tx, empty_block_mask, [query, key], {})


@late_rule("flex_attention", "create_mask")
def make_mask(
    tx: Frame, mod_fn: Var, B: Var, H: Var, Q_LEN: Var, KV_LEN: Var, device: Var
) -> Var:
    """`create_mask` of a function of four arguments."""
    if not isinstance(mod_fn, FunctionVar) or mod_fn.code.co_argcount != 4:
        raise Break(CODE, "create_mask of a function of scores")
    with function_of_scores(tx):
        return inline_polyfill(tx, dense_mask, [mod_fn, B, H, Q_LEN, KV_LEN, device], {})


@late_rule("traceback", "annotate")
def annotate(tx: Frame, annotation_dict: Var) -> Var:
    return inline_polyfill(tx, without_annotation, [annotation_dict], {})


@first_rule(torch.Tensor.__getitem__, TensorVar, (TensorVar, TupleVar))
def pick_element(tx: Frame, var: TensorVar, index: Var) -> Var | None:
    """`x[i]` and `x[i, 2]` in a function of scores."""
    if not tx.trace.state(FlexState).depth:
        return None
    items = index.items if isinstance(index, TupleVar) else [index]
    if not any(isinstance(item, TensorVar) for item in items):
        return None
    picked = [as_index(tx, item, var) for item in items]
    if len(picked) > var.fake.dim():
        return None  # eager's error
    return torch_functions.put_in_graph(tx, torch.ops.aten.index.Tensor, [var, ListVar(picked)], {})


def as_index(tx: Frame, item: Var, var: TensorVar) -> Var:
    if isinstance(item, TensorVar):
        if item.fake.dtype not in INDICES:
            raise Break(CODE, f"a function of scores that picks by {item!r}")
        return item
    if item.python_type() is not int:
        raise Break(CODE, f"a function of scores that picks by {item!r}")
    kinds = {"dtype": torch.int64, "device": var.fake.device}
    given = {name: tx.trace.constant(value) for name, value in kinds.items()}
    return torch_functions.call_in_graph(tx, torch.full, [TupleVar([]), item], given)


@late_rule("flex_attention", "FlexAttentionHOP.__call__")
def flex_attention(
    tx: Frame, hop: Var, query: Var, key: Var, value: Var, score_mod: Var, block_mask: Var,
    scale: Var, kernel_options: Var,
) -> Var:
    """The operator behind torch's `flex_attention`: result, log-sum-exps, greatest scores."""
    operands = [var for var in (query, key, value) if isinstance(var, TensorVar)]
    if len(operands) != 3 or torch_functions.in_transform():
        raise Break(CODE, "flex_attention in a transform, or of what is no tensor")
    table = block_mask.unpack(tx)
    check_operands(operands, table[QUERY_INDICES])
    most = wants_most(kernel_options)
    trace = tx.trace
    fakes = [var.fake for var in operands]
    score = torch_functions.run_on_fakes(tx, scores_of, fakes, {})
    # The node's inputs are known when the functions have been traced, which begin with its scores.
    node = trace.graph.operation("call_function", scores_of, (), {}, score)
    scores = TensorVar(node, score)
    reads, module = trace_function(tx, score_mod, scores, [scores])
    seen, mask = trace_mask(tx, table[MASK_MOD], scores)
    inputs = list(dict.fromkeys([*reads, *seen]))
    places = [inputs.index(read) for read in reads], [inputs.index(read) for read in seen]
    sizes = None if mask is None else block_sizes(table)
    number = sum(isinstance(item.target, FlexCall) for item in trace.graph.graph.nodes)
    facts = FlexFacts(float(scale.as_constant()), sizes, most)
    node.target = FlexCall(module, mask, places, facts, number)
    tables = [None] * TABLES if mask is None else tables_of(table)
    node.args = (*(var.node for var in operands), *tables, *inputs)
    given = [*fakes, *[None] * TABLES, *(read.meta["example_value"] for read in inputs)]
    node.meta["example_value"] = torch_functions.run_on_fakes(tx, node.target, given, {})
    return torch_functions.wrap_result(tx, node, node.meta["example_value"], [])


def scores_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A tensor like the scores."""
    key, _ = each_head(key, query), each_head(value, query)
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    return torch.matmul(query.to(wide), key.to(wide).transpose(-2, -1))


def check_operands(operands: list[TensorVar], query_indices: Var) -> None:
    """Break where eager refuses tensors, or computes otherwise."""
    query, key, value = (var.fake for var in operands)
    dtypes = {fake.dtype for fake in (query, key, value)}
    if not dtypes <= set(KINDS) or query.shape[0] != key.shape[0] and key.shape[0] != 1:
        raise Break(CODE, f"flex_attention of {operands!r}")
    if key.shape[:3] != value.shape[:3] or key.shape[1] == 0:
        raise Break(CODE, f"flex_attention of {operands!r}")
    trains = torch.is_grad_enabled() and any(fake.requires_grad for fake in (query, key, value))
    no_tables = query_indices.is_constant() and query_indices.as_constant() is None
    if trains and (no_tables or len(dtypes) > 1):
        raise Break(CODE, "flex_attention without what its gradients need")


def wants_most(options: Var) -> bool:
    """Whether the greatest scores are asked for. Break for what has results of another kind."""
    if not isinstance(options, DictVar):
        raise Break(CODE, f"flex_attention with {options!r}")
    keys, values = options.keys(), options.values()
    found = {key.as_constant(): var for key, var in zip(keys, values, strict=True)}
    if found["BACKEND"].as_constant() == "FLASH":
        raise Break(CODE, "flex_attention with BACKEND='FLASH'")
    return bool(found["OUTPUT_MAX"].as_constant())


def trace_mask(
    tx: Frame, mask_mod: Var, scores: TensorVar
) -> tuple[list[fx.Node], fx.GraphModule | None]:
    """What the graph of a mask reads, and the graph; None where all is seen."""
    from torch.nn.attention.flex_attention import noop_mask

    if isinstance(mask_mod, FunctionVar) and mask_mod.code is noop_mask.__code__:
        return [], None
    return trace_function(tx, mask_mod, scores, [])


def trace_function(
    tx: Frame, mod: Var, scores: TensorVar, first: list[Var]
) -> tuple[list[fx.Node], fx.GraphModule]:
    """What the graph of a function reads (without the scores), and the graph.

    first: what the function takes before four indices.
    """
    trace, state = tx.trace, tensor_state(tx.trace)
    mark, before = trace.graph.mark(), trace.effects.places()
    mutated, version = dict(state.mutated), scores.fake._version
    device = scores.fake.device
    sizes = [trace.constant(size) for size in scores.fake.shape]
    given = [mod, TupleVar(sizes), trace.constant(device), *first]
    with function_of_scores(tx), without_autocast(device.type):
        try:
            result = inline_polyfill(tx, over_all, given, {})
        except ObservedException as error:
            raise Break(CODE, f"a function of scores that raises {error.value!r}") from error
    kind = scores.fake.dtype if first else torch.bool
    if not isinstance(result, TensorVar) or result.fake.dtype is not kind:
        raise Break(CODE, f"a function of scores that gives {result!r}")
    changed = state.mutated != mutated or scores.fake._version != version
    if changed:
        raise Break(CODE, "a function of scores that changes a tensor")
    check_unseen(trace, result, before, "flex_attention of a function")
    body = trace.graph.operations_after(mark)
    pick = torch.ops.aten.index.Tensor  # raises where eager does
    if any(node.meta.get("checks") and node.target is not pick for node in body):
        raise Break(CODE, "a function of scores that checks a number")
    output = result.node
    if output not in body:
        size = tuple(scores.fake.shape)
        expand = torch.ops.aten.expand.default
        output = trace.graph.operation("call_function", expand, (output, size), {}, result.fake)
        body[output] = None
    inputs, module = trace.graph.cut_out(
        body, [output], first=[var.node for var in first if isinstance(var, TensorVar)])
    return with_scores(inputs, module, scores.node if first else None)


def with_scores(
    inputs: list[fx.Node], module: fx.GraphModule, scores: fx.Node | None
) -> tuple[list[fx.Node], fx.GraphModule]:
    """The other inputs, and the module, which takes the scores first, used or not."""
    if scores is None:
        return inputs, module
    if scores in inputs:
        return [node for node in inputs if node is not scores], module
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        module.graph.placeholder("scores")
    module.recompile()
    return inputs, module


@contextmanager
def without_autocast(device: str) -> Iterator[None]:
    """Eager runs these functions outside of autocast."""
    enabled = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, enabled)


def block_sizes(table: list[Var]) -> tuple[int, int]:
    """Queries and keys of a block of a block mask."""
    rows, columns = (var.as_constant() for var in table[SIZES:MASK_MOD])
    return int(rows), int(columns)


def tables_of(table: list[Var]) -> list[fx.Node | None]:
    """The nodes of a block mask's tables."""
    found: list[fx.Node | None] = []
    for var in table[FIRST_TABLE : FIRST_TABLE + TABLES]:
        if isinstance(var, TensorVar):
            found.append(var.node)
        elif var.is_constant() and var.as_constant() is None:
            found.append(None)
        else:
            raise Break(CODE, f"a block mask with {var!r}")
    return found
