"""Collectives and tensors of `torch.distributed`: operations of the graph.

Functional collectives and the methods of DTensor are one node each, which runs torch's own code; a
collective that writes into a tensor is its functional form and a write
(`graph_operators/collectives.py`). Groups, meshes and placements are constants, guarded by
equality.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.graph_operators import collectives
from dynamo.guards.sources import CallSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import Handler, late_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.tensors.constant_objects import held, without_objects
from dynamo.symbolic.tensors.loss_parallel import guard_table
from dynamo.symbolic.tensors.process_groups import WorkVar
from dynamo.symbolic.tensors.tensor import TensorVar
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
        if name in SHARDED:
            guard_table(tx.trace)
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


@late_rule("functional", "_not_supported_under_compile")
def differentiable(tx: Frame, name: Var, suggestion: Var | None = None) -> Var:
    """What `torch.distributed.nn.functional` raises where a compiler traces it: its autograd
    functions are operations of the graph here."""
    return ConstVar(None)


# -- that write into a tensor ------------------------------------------------------------------


def plain(tx: Frame, var: Var | None, default: Any = None) -> Any:
    return default if var is None else held(tx.trace, var)


def default_group() -> tuple[str, int, int] | None:
    """Name, rank and size of the group of all processes; None where there is none."""
    real = torch.distributed.group.WORLD
    return None if real is None else (str(real.group_name), real.rank(), real.size())


DEFAULT_GROUP = CallSource(ObjectSource(default_group, "torch.distributed.group.WORLD"))


def group_of(tx: Frame, group: Var | None) -> Any:
    """The process group that is meant, in the form that names it. Errors: Break where there is
    none, which eager says."""
    real = plain(tx, group)
    if real is None:
        known = default_group()
        tx.trace.guard("CONST", DEFAULT_GROUP, known)
        if known is None:
            raise Break("call_of_unknown_function", "a collective without a process group")
        return torch.distributed.group.WORLD
    return real


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
    """The collective in the graph; args: what it writes, and others. Work to wait for is given
    done: the program may read what the collective writes only behind its wait, and where that waits
    in the graph is the backend's to say, as for all collectives."""
    asynchronous = is_asynchronous(async_op, function.__name__)
    importlib.import_module("torch.distributed._functional_collectives")  # says how results look
    given = [arg if isinstance(arg, Var) else tx.trace.constant(arg) for arg in args]
    call_in_graph(tx, function, given, {})
    if not asynchronous:
        return ConstVar(None)
    written = given[0]
    return WorkVar((written,) if isinstance(written, TensorVar) else tuple(written.unpack(tx)))


def writes(*names: str) -> Any:
    """names: torch's for the same collective, some of which a version may lack."""
    def mark(handler: Handler) -> Handler:
        for name in names:
            late_rule("distributed_c10d", name)(handler)
        return handler

    return mark


def shapes_of(tx: Frame, tensors: Var) -> list[Any]:
    """The dtype and shape of each tensor of a list."""
    found = tensors.unpack(tx)
    if not all(isinstance(each, TensorVar) for each in found):
        raise Break("call_of_unknown_function", f"a collective with {tensors!r}")
    fakes: list[Any] = [each.fake for each in found if isinstance(each, TensorVar)]
    return [(fake.dtype, tuple(fake.shape)) for fake in fakes]


def check_alike(tx: Frame, one: Var, tensors: Var, count: int) -> None:
    """Break where the tensors of a list are not as many as ranks, or not like another tensor: what
    then happens, the backend of the group says."""
    shapes = shapes_of(tx, tensors)
    if len(shapes) != count or any(shape != shapes_of(tx, TupleVar([one]))[0] for shape in shapes):
        raise Break("call_of_unknown_function", "a collective of unequal tensors")


@writes("all_reduce")
def all_reduce(tx: Frame, tensor: Var, op: Var | None = None, group: Var | None = None,
               async_op: Var | None = None) -> Var:
    name = group_of(tx, group).group_name
    return write(tx, collectives.all_reduce_, async_op, tensor, reduction(tx, op), name)


def member(real: Any, rank: Var | None, in_group: Var | None) -> int:
    """The rank within a group that is meant, by its number in the world or in the group."""
    for given in (in_group, rank):
        if given is not None and not given.is_constant():
            raise Break("call_of_unknown_function", f"a collective with rank {given!r}")
    number = None if in_group is None else in_group.as_constant()
    if number is not None:
        return int(number)
    whole = None if rank is None else rank.as_constant()
    return torch.distributed.get_group_rank(real, 0 if whole is None else whole)


@writes("broadcast")
def broadcast(
    tx: Frame, tensor: Var, src: Var | None = None, group: Var | None = None,
    async_op: Var | None = None, group_src: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    source = member(real, src, group_src)
    return write(tx, collectives.broadcast_, async_op, tensor, source, real.group_name)


@writes("reduce")
def reduce(
    tx: Frame, tensor: Var, dst: Var | None = None, op: Var | None = None,
    group: Var | None = None, async_op: Var | None = None, group_dst: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    return write(tx, collectives.reduce_, async_op, tensor, member(real, dst, group_dst),
                 reduction(tx, op), real.group_name)


def on_one_rank(
    tx: Frame, real: Any, at: int, one: Var, tensors: Var | None
) -> Var:
    """The list that the rank `at` alone has. Break where eager may raise an error."""
    if tensors is None or tensors.is_constant() and tensors.as_constant() is None:
        tensors = ListVar([])
    if real.rank() == at:
        check_alike(tx, one, tensors, real.size())
    elif shapes_of(tx, tensors):
        raise Break("call_of_unknown_function", "tensors on a rank that has none to give or to get")
    return tensors


@writes("gather")
def gather(
    tx: Frame, tensor: Var, gather_list: Var | None = None, dst: Var | None = None,
    group: Var | None = None, async_op: Var | None = None, group_dst: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    target = member(real, dst, group_dst)
    outputs = on_one_rank(tx, real, target, tensor, gather_list)
    return write(tx, collectives.gather_, async_op, outputs, tensor, target, real.group_name)


@writes("scatter")
def scatter(
    tx: Frame, tensor: Var, scatter_list: Var | None = None, src: Var | None = None,
    group: Var | None = None, async_op: Var | None = None, group_src: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    source = member(real, src, group_src)
    tensors = on_one_rank(tx, real, source, tensor, scatter_list)
    return write(tx, collectives.scatter_, async_op, tensor, tensors, source, real.group_name)


@writes("all_gather")
def all_gather(
    tx: Frame, tensor_list: Var, tensor: Var, group: Var | None = None, async_op: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    check_alike(tx, tensor, tensor_list, real.size())
    return write(tx, collectives.all_gather_, async_op, tensor_list, tensor, real.group_name)


@writes("all_gather_into_tensor", "all_gather_single", "_all_gather_base")
def all_gather_into_tensor(
    tx: Frame, output_tensor: Var, input_tensor: Var, group: Var | None = None,
    async_op: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    return write(tx, collectives.all_gather_into_, async_op, output_tensor, input_tensor,
                 real.size(), real.group_name)


@writes("reduce_scatter")
def reduce_scatter(
    tx: Frame, output: Var, input_list: Var, op: Var | None = None, group: Var | None = None,
    async_op: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    check_alike(tx, output, input_list, real.size())
    return write(tx, collectives.reduce_scatter_, async_op, output, input_list, reduction(tx, op),
                 real.group_name)


@writes("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base")
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


@writes("all_to_all")
def all_to_all(
    tx: Frame, output_tensor_list: Var, input_tensor_list: Var, group: Var | None = None,
    async_op: Var | None = None,
) -> Var:
    real = group_of(tx, group)
    shapes = shapes_of(tx, output_tensor_list) + shapes_of(tx, input_tensor_list)
    unequal = len(set(shapes)) != 1 and torch.distributed.get_backend(real) == "gloo"  # an error
    if len(shapes) != 2 * real.size() or len({dtype for dtype, _ in shapes}) != 1 or unequal:
        raise Break("call_of_unknown_function", "a collective of unequal tensors")
    return write(tx, collectives.all_to_all_, async_op, output_tensor_list, input_tensor_list,
                 real.group_name)
