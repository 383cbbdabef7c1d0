"""Collectives and tensors of `torch.distributed`: operations of the graph.

Functional collectives and the methods of DTensor are one node each, which runs torch's own code; a
collective that writes into a tensor is its functional form and a write (`base.collectives`).
Groups, meshes and placements are constants, guarded by equality.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.graph_operators import collectives
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import Handler, late_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.constant_objects import held, without_objects
from dynamo.symbolic.tensors.process_groups import work_done
from dynamo.symbolic.tensors.torch_functions import call_in_graph

FUNCTIONAL = """all_reduce all_gather_tensor all_gather_tensor_autograd reduce_scatter_tensor
    reduce_scatter_tensor_autograd all_reduce_coalesced all_gather_into_tensor_coalesced
    reduce_scatter_tensor_coalesced all_to_all_single all_to_all_single_autograd broadcast
    permute_tensor wait_tensor""".split()
SHARDED = ("DTensor.to_local", "DTensor.from_local", "DTensor.redistribute", "DTensor.full_tensor")


def register(module: str, name: str, find: Any) -> None:
    """The call is one node."""

    @late_rule(module, name)
    def put(tx: Frame, *args: Var, **kwargs: Var) -> Var:
        return call_in_graph(tx, *without_objects(tx, named(find()), list(args), kwargs))


def named(function: Any) -> Any:
    """The function as a target of a node: fx takes those of torch for attributes of modules."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = function.__name__
    call.__module__ = __name__
    return call


def _functional(name: str) -> Any:
    return lambda: getattr(torch.distributed._functional_collectives, name)


def _sharded(name: str) -> Any:
    def find() -> Any:
        return getattr(torch.distributed.tensor.DTensor, name.partition(".")[2])

    return find


for _name in FUNCTIONAL:
    register("_functional_collectives", _name, _functional(_name))
for _name in SHARDED:
    register("_api", _name, _sharded(_name))


# -- that write into a tensor ------------------------------------------------------------------


def plain(tx: Frame, var: Var | None, default: Any = None) -> Any:
    return default if var is None else held(tx.trace, var)


def group_of(tx: Frame, group: Var | None) -> Any:
    """The process group that is meant, in the form that names it."""
    real = plain(tx, group)
    return torch.distributed.group.WORLD if real is None else real


def reduction(tx: Frame, op: Var | None) -> str:
    """The name of a reduction. Errors: Break for one that has more than a name."""
    real = plain(tx, op, torch.distributed.ReduceOp.SUM)
    name = str(real).rpartition(".")[2].lower() if "ReduceOp" in str(type(real)) else str(real)
    if name not in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"):
        raise Break("call_of_unknown_function", f"a collective with {op!r}")
    return name


def is_asynchronous(async_op: Var | None, what: str) -> bool:
    """Whether a collective returns its work to wait for."""
    if async_op is not None and not async_op.is_constant():
        raise Break("call_of_unknown_function", f"{what}(async_op={async_op!r})")
    return async_op is not None and bool(async_op.as_constant())


def write(tx: Frame, function: Any, async_op: Var | None, *args: Any) -> Var:
    """The collective in the graph. Work to wait for is given done: the program may read what the
    collective writes only behind its wait, and where that waits in the graph is the backend's to
    say, as for all collectives."""
    asynchronous = is_asynchronous(async_op, function.__name__)
    importlib.import_module("torch.distributed._functional_collectives")  # says how results look
    given = [arg if isinstance(arg, Var) else tx.trace.constant(arg) for arg in args]
    call_in_graph(tx, function, given, {})
    return work_done(tx) if asynchronous else ConstVar(None)


def writes(name: str) -> Any:
    def mark(handler: Handler) -> Handler:
        return late_rule("distributed_c10d", name)(handler)

    return mark


@writes("all_reduce")
def all_reduce(tx: Frame, tensor: Var, op: Var | None = None, group: Var | None = None,
               async_op: Var | None = None) -> Var:
    name = group_of(tx, group).group_name
    return write(tx, collectives.all_reduce_, async_op, tensor, reduction(tx, op), name)


@writes("broadcast")
def broadcast(
    tx: Frame, tensor: Var, src: Var | None = None, group: Var | None = None,
    async_op: Var | None = None, group_src: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    source = plain(tx, group_src)
    if source is None:
        source = torch.distributed.get_group_rank(real, plain(tx, src, 0))
    return write(tx, collectives.broadcast_, async_op, tensor, source, real.group_name)


@writes("all_gather_into_tensor")
def all_gather_into_tensor(
    tx: Frame, output_tensor: Var, input_tensor: Var, group: Var | None = None,
    async_op: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    return write(tx, collectives.all_gather_into_, async_op, output_tensor, input_tensor,
                 real.size(), real.group_name)


@writes("reduce_scatter_tensor")
def reduce_scatter_tensor(
    tx: Frame, output: Var, input: Var, op: Var | None = None, group: Var | None = None,
    async_op: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    return write(tx, collectives.reduce_scatter_into_, async_op, output, input, reduction(tx, op),
                 real.size(), real.group_name)


@writes("all_to_all_single")
def all_to_all_single(
    tx: Frame, output: Var, input: Var, output_split_sizes: Var | None = None,
    input_split_sizes: Var | None = None, group: Var | None = None, async_op: Var | None = None,
) -> Var:
    real = group_of(tx, group)

    def rows(sizes: Var | None, tensor: Any) -> list[int]:
        given = plain(tx, sizes)
        return list(given) if given else [tensor.fake.shape[0] // real.size()] * real.size()

    return write(tx, collectives.all_to_all_into_, async_op, output, input,
                 rows(output_split_sizes, output), rows(input_split_sizes, input), real.group_name)
