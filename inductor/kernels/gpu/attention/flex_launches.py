"""Runs the Triton kernels of flex attention on tensors.

The first call for tensors of some sizes and strides goes through Triton, which compiles a kernel
for just those; later ones hand addresses to the driver.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor.kernels.attention_spec import NO_LEAVES, Blocks, Leaves, four_strides
from inductor.kernels.gpu.attention.flex_kernels import kernel_text
from inductor.kernels.gpu.attention.flex_program import FlexProgram
from inductor.kernels.gpu.attention.flex_spec import FlexSpec, flex_spec_of
from inductor.kernels.gpu.attention.launches import (
    Key,
    _dense,
    _stream,
    first_that_runs,
    kernel,
)
from inductor.kernels.gpu.text_launches import KernelName, TextLaunch
from inductor.runtime._launch import Allocation, KernelCall

Tensors = Sequence[torch.Tensor]
FEW = Blocks(64, 1, 4, 1)


@dataclass(frozen=True, slots=True)
class FlexForward:
    """The kernel and its results. tables: it follows those of a block mask."""

    call: KernelCall
    out: Allocation
    lse: Allocation
    reads: tuple[int, ...]
    tables: bool
    device: torch.device

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: Tensors, reads: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = self.out(), self.lse()
        read = [reads[place] for place in self.reads]
        followed = four_tables(tables, 0, self.tables)
        self.call(_stream(self.device), q, k, v, *read, *followed, out, lse)
        return out, lse


@dataclass(frozen=True, slots=True)
class FlexBackward:
    """The three kernels and their results. tables: they follow those of a block mask."""

    delta: KernelCall
    keys: KernelCall
    queries: KernelCall
    results: tuple[Allocation, Allocation, Allocation]
    sums: Allocation
    reads: tuple[int, ...]
    tables: bool
    device: torch.device

    def __call__(
        self, grad: torch.Tensor, lse_grad: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor,
        v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, tables: Tensors, reads: Tensors,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        stream, delta = _stream(self.device), self.sums()
        dq, dk, dv = (result() for result in self.results)
        self.delta(stream, out, grad, delta)
        if lse_grad is not None:
            delta -= lse_grad
        read = [reads[place] for place in self.reads]
        given, sums = (q, k, v, *read), (grad, lse, delta)
        of_queries, of_keys = (four_tables(tables, half, self.tables) for half in (0, 1))
        self.keys(stream, *given, *of_keys, *sums, dk, dv)
        self.queries(stream, *given, *of_queries, *sums, dq, q)
        return dq, dk, dv


def four_tables(tables: Tensors, half: int, wanted: bool) -> Tensors:
    """Counts and indices of partial and of full blocks, the former in place of absent ones; none
    where they are not wanted. half: for blocks of queries (0) or keys (1)."""
    if not wanted:
        return ()
    size = len(tables) // 2
    found = tables[half * size : half * size + size]
    return [*found, *found][:4]


@dataclass(slots=True)
class FlexKernels:
    """Flex attention by our kernels, forward and backward, for whatever tensors come."""

    known: dict[Key, Callable[..., Any]] = field(default_factory=dict)

    def forward(
        self, program: FlexProgram, slow: Callable[..., Any], sparse: Sequence[int], scale: float,
        given: tuple[Any, ...],
    ) -> Any:
        """given: q, k, v, tables, reads. slow: what computes the same where no kernel can."""
        key = ("forward", program.name, tuple(sparse), scale, *map(_facts, given))
        call = self.known.get(key)
        if call is not None:
            return call(*given)
        q, k, v, tables, _ = given
        spec, device = flex_spec_of(q, k, v, tables, sparse, scale), q.device
        made = [functools.partial(prepare_forward, program, spec, device, blocks)
                for blocks in spec.forward()]
        self.known[key], result = first_that_runs(made, slow, given)
        return result

    def backward(
        self, program: FlexProgram, slow: Callable[..., Any], sparse: Sequence[int], scale: float,
        leaves: Leaves, given: tuple[Any, ...],
    ) -> Any:
        """given: gradients of result and log-sum-exps, q, k, v, both results, tables, reads."""
        key = ("backward", program.name, tuple(sparse), scale, *leaves, *map(_facts, given))
        call = self.known.get(key)
        if call is not None:
            return call(*given)
        grad, _, q, k, v, _, _, tables, _ = given
        spec = flex_spec_of(q, k, v, tables, sparse, scale)
        made = [functools.partial(prepare_backward, program, spec, grad, keys, queries, leaves)
                for keys, queries in zip(spec.keys(), spec.queries(), strict=False)]
        self.known[key], result = first_that_runs(made, slow, given)
        return result


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.device
    return tuple(map(_facts, value)) if isinstance(value, (list, tuple)) else value


def prepare_forward(
    program: FlexProgram, spec: FlexSpec, device: torch.device, blocks: Blocks
) -> FlexForward:
    """The kernel, not compiled yet."""
    base = spec.base
    size = (base.batch, base.heads, base.queries, base.value_head)
    call = _launch(program, "forward", spec, blocks, base.grid(blocks), 5, spec.constants())
    return FlexForward(
        call, Allocation(size, base.out, base.dtype, device),
        Allocation(size[:3], _dense(size[:3]), torch.float32, device), program.reads,
        spec.tables is not None, device,
    )  # fmt: skip


def prepare_backward(
    program: FlexProgram, spec: FlexSpec, grad: torch.Tensor, keys: Blocks, queries: Blocks,
    leaves: Leaves = NO_LEAVES,
) -> FlexBackward:
    """The kernels, not compiled yet. grad: the gradient of the result."""
    base, device, given = spec.base, grad.device, spec.constants(four_strides(grad), leaves)
    delta = TextLaunch.of(
        kernel("delta"), base.grid(FEW), given, FEW, 3)
    by_keys = _launch(program, "backward_keys", spec, keys, base.grid_of_keys(keys), 8, given)
    by_queries = _launch(program, "backward_queries", spec, queries, base.grid(queries), 8, given)
    results = [Allocation(*form, base.dtype, device) for form in base.gradients(leaves)]
    rows = base.batch, base.heads, base.queries
    sums = Allocation(rows, _dense(rows), torch.float32, device)
    return FlexBackward(
        delta, by_keys, by_queries, (results[0], results[1], results[2]), sums, program.reads,
        spec.tables is not None, device,
    )


def _launch(
    program: FlexProgram, name: str, spec: FlexSpec, blocks: Blocks, grid: tuple[int, int, int],
    tensors: int, constants: dict[str, Any],
) -> KernelCall:
    """A kernel of a program; tensors: how many it takes besides tables and what is read."""
    has_tables = spec.tables is not None
    function = KernelName(_text(program, has_tables), f"attention_{name}")
    options = {"debug": True} if program.checks else {}
    count = tensors + len(program.reads) + 4 * has_tables
    return TextLaunch.of(function, grid, constants, blocks, count, options)


@functools.lru_cache(256)
def _text(program: FlexProgram, tables: bool) -> str:
    return kernel_text(program, tables)
