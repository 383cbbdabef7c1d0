"""Triton kernels of the program: `kernel[grid](...)` is one operation of the graph.

`kernel[grid]` is a Python function of Triton's that calls `kernel.run(..., grid=grid)`: the rule is
for `run`, and so for all wrappers (`triton.autotune`, `triton.heuristics`). The kernel is compiled
and tuned by Triton, at the first call. A grid that is a function of the arguments is asked here,
for each configuration.

A `TensorDescriptor` that the program makes of a tensor is checked while tracing, all but the
tensor's address, which the launch checks.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.graph_operators.kernel_calls import (
    DIMENSIONS,
    KernelCall,
    configurations,
    defaults_of,
    function_of,
    hooks_of,
    is_descriptor,
    layers_of,
    operators,
    parameters_of,
)
from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import late_rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.cached import real_value
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import ListVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.shapes.numbers import SymbolicNumber
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import call_in_graph

CODE = "call_of_unknown_function"
NUMBERS = {int: "int", float: "float", bool: "bool"}


@late_rule("jit", "JITFunction.run")
@late_rule("interpreter", "InterpretedFunction.run")
@late_rule("autotuner", "Autotuner.run")
@late_rule("autotuner", "Heuristics.run")
def run_kernel(tx: Frame, kernel: Var, *args: Var, **kwargs: Var) -> Var:
    real = real_kernel(tx, kernel)
    grid, warmup = kwargs.pop("grid", None), kwargs.pop("warmup", ConstVar(False))
    if grid is None or not warmup.is_constant() or warmup.as_constant():
        raise Break(CODE, "a kernel without a grid")
    parameters = parameters_of(real)
    if len(args) > len(parameters):
        raise Break(CODE, f"{function_of(real).__name__}: too many arguments")
    named = dict(zip(parameters, args, strict=False)) | kwargs
    names, kinds, given, constants = sorted_out(tx, named, parameters)
    sizes, grids = all_grids(tx, real, grid, named)
    blocks = tuple((name, block_of(tx, named[name]))
                   for name, kind in zip(names, kinds, strict=True) if kind == "descriptor")
    call = KernelCall(tuple(names), tuple(kinds), tuple(constants), grids, blocks)
    try:
        operator = operators.of(real, call)
    except RuntimeError as error:
        raise Break(CODE, f"{function_of(real).__name__}: {error}") from error
    return call_in_graph(tx, operator, [*given, ListVar(sizes)], {})


@late_rule("jit", "ConstexprFunction.__call__")
def call_on_host(tx: Frame, function: Var, *args: Var, **kwargs: Var) -> Var:
    """`triton.cdiv` and its like: the Python function."""
    return tx.call(function.get_attr(tx, "fn"), list(args), dict(kwargs))


@late_rule("library", "wrap_triton")
@late_rule("triton", "wrap_triton")
@late_rule("library", "capture_triton")
@late_rule("triton", "capture_triton")
def wrap_triton(tx: Frame, kernel: Var) -> Var:
    real_kernel(tx, kernel)
    return kernel


def real_kernel(tx: Frame, kernel: Var) -> Any:
    """The kernel; the graph holds for this one."""
    if not isinstance(kernel, ObjectVar) or kernel.real is None or kernel.written:
        raise Break(CODE, f"a kernel that the program has changed: {kernel!r}")
    if function_of(kernel.real) is None:
        raise Break(CODE, f"a kernel without a Python function: {kernel!r}")
    tx.trace.guard("ID", kernel.source, kernel.real)
    if any(hooks_of(layer) for layer in layers_of(kernel.real)):
        raise Break(CODE, f"a kernel with hooks: {kernel!r}")
    return kernel.real


def sorted_out(
    tx: Frame, named: dict[str, Var], parameters: dict[str, bool]
) -> tuple[list[str], list[str], list[Var], list[tuple[str, Any]]]:
    """Names, kinds and values of what is known at a call only; the constants."""
    names, kinds, given = [], [], []
    constants: list[tuple[str, Any]] = []
    for name, var in named.items():
        kind = kind_of(var)
        if kind and not parameters.get(name, True):
            names.append(name)
            kinds.append(kind)
            given.extend(parts_of(tx, var) if kind == "descriptor" else [var])
        elif kind in ("tensor", "descriptor"):
            raise Break(CODE, f"a {kind} as the constant {name} of a kernel")
        else:
            constants.append((name, constant_of(tx, var)))
    return names, kinds, given, constants


def kind_of(var: Var) -> str:
    """How an operator takes it; empty for what is a constant of the call."""
    if isinstance(var, TensorVar):
        if var.python_type() not in (torch.Tensor, torch.nn.Parameter):
            raise Break(CODE, f"a kernel of {var!r}")
        return "tensor"
    if isinstance(var, ObjectVar) and is_descriptor(var.cls):
        return "descriptor"
    if isinstance(var, ConstVar) or isinstance(var, SymbolicNumber):
        return NUMBERS.get(var.python_type(), "")
    return ""


def constant_of(tx: Frame, var: Var) -> Any:
    """The value of an argument of which the kernel's code hangs."""
    if isinstance(var, SymbolicNumber):
        return var.as_constant()
    if isinstance(var, ObjectVar) and var.real is not None and not var.written:
        parts = getattr(var.real, "__dict__", {})
        if any(isinstance(part, torch.Tensor) for part in parts.values()):
            raise Break(CODE, f"{var!r} as an argument of a kernel: it holds tensors")
        tx.trace.guard("ID", var.source, var.real)
        return var.real
    return real_value(tx.trace, var)


# -- descriptors ----------------------------------------------------------------------------------


@late_rule("tensor_descriptor", "TensorDescriptor.__post_init__")
def check_descriptor(tx: Frame, descriptor: Var) -> Var:
    """Triton's own checks, over sizes that may be symbols."""
    base, shape, strides = parts_of(tx, descriptor)
    block, padding = block_of(tx, descriptor)
    sizes = [[size.as_fake() for size in sizes.unpack(tx)] for sizes in (shape, strides)]
    try:
        descriptor.python_type()(base.as_fake(), *sizes, list(block), padding)
    except (AssertionError, TypeError, ValueError) as error:
        raise Break(CODE, f"TensorDescriptor: {error}") from error
    return ConstVar(None)


def parts_of(tx: Frame, descriptor: Var) -> list[Var]:
    """The tensor, its sizes and its strides, as a descriptor has them."""
    base = descriptor.get_attr(tx, "base")
    if kind_of(base) != "tensor":
        raise Break(CODE, f"a descriptor of {base!r}")
    names = ("shape", "strides")
    return [base, *(ListVar(descriptor.get_attr(tx, name).unpack(tx)) for name in names)]


def block_of(tx: Frame, descriptor: Var) -> tuple[tuple[int, ...], str]:
    """The constants of a descriptor: its block's shape, its padding."""
    sizes = descriptor.get_attr(tx, "block_shape").unpack(tx)
    padding = descriptor.get_attr(tx, "padding")
    if not all(part.is_constant() for part in [*sizes, padding]):
        raise Break(CODE, f"a descriptor whose block is not known: {descriptor!r}")
    return tuple(size.as_constant() for size in sizes), padding.as_constant()


# -- grids ----------------------------------------------------------------------------------------


def all_grids(
    tx: Frame, kernel: Any, grid: Var, named: dict[str, Var]
) -> tuple[list[Var], tuple[tuple[tuple[str, Any], ...], ...]]:
    """Three sizes for each grid, one grid for each configuration that may make another."""
    if not is_function(grid):
        return sizes_of(tx, grid), ((),)
    meta = {name: ConstVar(value) for name, value in defaults_of(kernel).items()} | named
    found: dict[tuple[tuple[str, Any], ...], list[Var]] = {}
    for chosen in configurations(kernel):
        given = meta | {name: ConstVar(value) for name, value in chosen}
        if chosen not in found:
            found[chosen] = sizes_of(tx, tx.call(grid, [as_dict(tx, kernel, given)], {}))
    return [size for sizes in found.values() for size in sizes], tuple(found)


def is_function(grid: Var) -> bool:
    return not issubclass(grid.python_type(), (tuple, list, int))


def as_dict(tx: Frame, kernel: Any, given: dict[str, Var]) -> Var:
    """What a grid's function gets: the parameters, those that are computed of others too."""
    given = dict(given)
    for layer in layers_of(kernel):
        for name, function in getattr(layer, "values", {}).items():
            heuristic = tx.trace.wrap(function, ObjectSource(function, "heuristic"))
            given[name] = tx.call(heuristic, [DictVar.from_names(dict(given))], {})
    names = parameters_of(kernel)
    return DictVar.from_names({name: var for name, var in given.items() if name in names})


def sizes_of(tx: Frame, grid: Var) -> list[Var]:
    """Three sizes."""
    if issubclass(grid.python_type(), int):
        sizes = [grid]
    else:
        sizes = grid.unpack(tx)
    if not 1 <= len(sizes) <= DIMENSIONS or not all(kind_of(s) == "int" for s in sizes):
        raise Break(CODE, f"the grid {grid!r} of a kernel")
    return [*sizes, *[ConstVar(1)] * (DIMENSIONS - len(sizes))]
