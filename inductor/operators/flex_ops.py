"""Flex attention as an operator: what graphs hold where a kernel of our own computes it.

`dynamo_jit::flex_attention(q, k, v, tables, reads, program, sparse, scale)` gives the result and
the log-sum-exps for half-precision tensors (batch, heads, length, head), of which keys may have
fewer heads. program: the name of a `Program`, which knows what happens to the scores. tables:
counts and indices of a block mask's partial blocks, and of the full ones, for each block of queries
(two or four), then for each block of keys; or none, where the mask alone says what is seen. sparse:
queries and keys of a block. reads: all tensors that the functions of the program read. It has
a derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.graph_operators.flex_calls import LN2, TABLES, FlexCall, cast, result_strides
from inductor.kernels.attention_reference import empty_gradient
from inductor.kernels.attention_spec import HALF, Leaves
from inductor.kernels.gpu.attention.flex_launches import FlexKernels
from inductor.kernels.gpu.attention.flex_program import FlexProgram, program_of
from inductor.operators.attention_ops import has_kernel
from inductor.operators.differentiable_ops import LIBRARY, Kernels, below_autograd, register

Tensor = torch.Tensor
Tensors = Sequence[Tensor]
FACTS = "Tensor[] tables, Tensor[] reads, str program, int[] sparse, float scale"
LIBRARY.define(f"flex_attention(Tensor q, Tensor k, Tensor v, {FACTS}) -> (Tensor, Tensor)")
LIBRARY.define(
    "flex_attention_backward(Tensor grad, Tensor? lse_grad, Tensor q, Tensor k, Tensor v,"
    f" Tensor out, Tensor lse, {FACTS}, bool[] leaves) -> (Tensor, Tensor, Tensor)"
)


@dataclass(frozen=True, slots=True)
class Program:
    """What happens to the scores: by kernels, and by ATen operators."""

    kernels: FlexProgram
    call: FlexCall


PROGRAMS: dict[str, Program] = {}  # by name; a graph holds the name


@functools.cache
def _kernels() -> FlexKernels:
    return FlexKernels()


# -- the operators ---------------------------------------------------------------------------------


def shape_of_flex(q: Tensor, k: Tensor, v: Tensor, *facts: Any) -> tuple[Tensor, Tensor]:
    """Empty tensors of the forms of the results."""
    size = (*q.shape[:3], v.shape[3])
    stride = result_strides(size, q.stride())
    out = torch.empty_strided(size, stride, dtype=q.dtype, device=q.device)
    return out, torch.empty(size[:3], dtype=torch.float32, device=q.device)


def shape_of_backward(
    grad: Tensor, lse_grad: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *facts: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors of the forms of the gradients."""
    dq, dk, dv = map(empty_gradient, (q, k, v), facts[-1])
    return dq, dk, dv


def reference_flex(
    program: Program, q: Tensor, k: Tensor, v: Tensor, tables: Tensors, reads: Tensors
) -> tuple[Tensor, Tensor]:
    """The operator by ATen operators."""
    out, lse, _ = program.call.by_matmuls(q, k, v, tuple(reads))
    return out, lse.float() * LN2


def above_autograd() -> Any:
    """Inside, autograd records, also where an operator's kernel runs."""
    key = torch._C.DispatchKey
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in (key.AutogradCPU, key.AutogradCUDA, key.AutogradOther, key.ADInplaceOrView):
        excluded = excluded.remove(name)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def reference_backward(
    program: Program, leaves: Leaves, grad: Tensor, lse_grad: Tensor | None, q: Tensor, k: Tensor,
    v: Tensor, out: Tensor, lse: Tensor, tables: Tensors, reads: Tensors,
) -> tuple[Tensor, ...]:
    """The gradients by ATen operators."""
    with torch.enable_grad(), above_autograd():
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        results = reference_flex(program, given[0], given[1], given[2], tables, reads)
        grads = (grad, torch.zeros_like(lse) if lse_grad is None else lse_grad)
        found = torch.autograd.grad(results, given, grads)
    made = shape_of_backward(grad, lse_grad, q, k, v, leaves)
    return tuple(one.copy_(other) for one, other in zip(made, found, strict=True))


def _on_cpu(
    q: Tensor, k: Tensor, v: Tensor, tables: Tensors, reads: Tensors, program: str,
    sparse: Sequence[int], scale: float,
) -> Any:
    return reference_flex(PROGRAMS[program], q, k, v, tables, reads)


def _backward_on_cpu(*args: Any) -> Any:
    *given, program, _, _, leaves = args
    return reference_backward(PROGRAMS[program], leaves, *given)


def by_kernels(
    q: Tensor, k: Tensor, v: Tensor, tables: Tensors, reads: Tensors, program: str,
    sparse: Sequence[int], scale: float,
) -> Any:
    """Forward, by our kernel."""
    known = PROGRAMS[program]
    slow = functools.partial(reference_flex, known)
    return _kernels().forward(known.kernels, slow, sparse, scale, (q, k, v, tables, reads))


def backward_by_kernels(*args: Any) -> Any:
    """The gradients, by our kernels."""
    *given, program, sparse, scale, leaves = args
    known = PROGRAMS[program]
    slow = functools.partial(reference_backward, known, leaves)
    return _kernels().backward(known.kernels, slow, sparse, scale, leaves, tuple(given))


class _Flex(torch.autograd.Function):
    """The derivative of the operator."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *facts: Any) -> Any:
        out, lse = below_autograd("flex_attention", q, k, v, *facts)
        tables, reads, *ctx.facts = facts
        ctx.leaves = [x.is_leaf for x in (q, k, v)]
        ctx.tables = len(tables)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, *tables, *reads)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, out, lse, *others = ctx.saved_tensors
        grad = torch.zeros_like(out) if grads[0] is None else grads[0]
        found = torch.ops.dynamo_jit.flex_attention_backward(
            grad, grads[1], q, k, v, out, lse, others[: ctx.tables], others[ctx.tables :],
            *ctx.facts, ctx.leaves,
        )
        return *found, *[None] * 5


register(
    "flex_attention",
    Kernels(shape_of_flex, _on_cpu, by_kernels),
    Kernels(shape_of_backward, _backward_on_cpu, backward_by_kernels),
    _Flex,
)


# -- in captured graphs ----------------------------------------------------------------------------


class ChosenFlex:
    """Takes the place of a `FlexCall`: the same, by the operator where a kernel is for it."""

    def __init__(self, call: FlexCall, name: str) -> None:
        self.call, self.program = call, name
        self.modules = call.modules
        self.__name__ = self.__qualname__ = f"{call.__name__}_by_kernels"
        self.__module__ = __name__

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *inputs: Any) -> Any:
        device = query.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            query, key, value = (cast(x, dtype) for x in (query, key, value))
        if key.shape[0] != query.shape[0]:
            key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
        reads = inputs[TABLES:]
        trains = torch.is_grad_enabled() and any(x.requires_grad for x in reads)
        if trains or not has_kernel(query, key, value):
            with torch.autocast(device, enabled=False):
                return self.call.by_matmuls(query, key, value, reads)
        facts = self.call.facts
        tables = tables_of(inputs[:TABLES], query.shape, key.shape, facts.sizes)
        sparse = list(facts.sizes or (1, 1))
        out, lse = torch.ops.dynamo_jit.flex_attention(
            query, key, value, tables, list(reads), self.program, sparse, facts.scale
        )
        return out, lse / LN2, lse.detach()  # nobody looks at the greatest scores


def tables_of(
    given: Sequence[Tensor | None], query: Sequence[int], key: Sequence[int],
    sizes: tuple[int, int] | None,
) -> list[Tensor]:
    """The tables in the operator's order; none where they are not what kernels can follow."""
    if sizes is None or any(given[place] is None for place in (0, 1, 4, 5)):
        return []
    full = all(given[place] is not None for place in (2, 3, 6, 7))
    if not full and any(given[place] is not None for place in (2, 3, 6, 7)):
        return []
    places = (0, 1, 2, 3, 4, 5, 6, 7) if full else (0, 1, 4, 5)
    tables = [table for place in places if (table := given[place]) is not None]
    rows, columns = -(-query[2] // sizes[0]), -(-key[2] // sizes[1])
    lead = tuple(tables[0].shape[:2])
    counts = [(*lead, rows), (*lead, columns)]
    half = len(tables) // 2
    for number, table in enumerate(tables):
        count = counts[number // half]
        other = counts[1 - number // half][2]
        wanted = count if number % 2 == 0 else (*count, other)
        if tuple(table.shape) != wanted or not table.is_contiguous():
            return []
    if any(n not in (1, most) for n, most in zip(lead, query[:2], strict=True)):
        return []
    return tables if all(table.dtype is torch.int32 for table in tables) else []


def choose_flex(call: FlexCall, given: Sequence[Any], autocasts: bool) -> ChosenFlex | None:
    """The kernel of a call with these fakes (of all arguments); None where no kernel does.

    autocasts: float32 may become half precision.
    """
    query, key, inputs = given[0], given[1], given[3 + TABLES :]
    dtypes = (*HALF, torch.float32) if autocasts else HALF
    if call.facts.most or query.dtype not in dtypes or not can_read(query.device, inputs):
        return None
    size = (*query.shape[:3], key.shape[2])
    if any(type(n) is not int for n in size):
        return None
    program = program_of(call, size, query.device, inputs)
    if program is None:
        return None
    PROGRAMS.setdefault(program.name, Program(program, call))
    return ChosenFlex(call, program.name)


def can_read(device: torch.device, inputs: Sequence[Any]) -> bool:
    """Whether kernels can read what the functions of a call read."""
    if any(not isinstance(x, Tensor) or x.device != device for x in inputs):
        return False
    return all(type(n) is int for x in inputs for n in (*x.shape, *x.stride()))
