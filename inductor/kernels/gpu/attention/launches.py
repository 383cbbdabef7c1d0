"""Runs the Triton kernels of attention on tensors.

`AttentionCall` is called like the operator `dynamo_jit::attention` (see
`inductor.operators.attention_ops`), and knows the launches of each set of sizes and strides
(`text_launches.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dynamo.base.fallbacks import KERNEL, refused
from dynamo.base.signals import is_of_signal
from inductor.kernels.attention_reference import reference_attention, reference_backward
from inductor.kernels.attention_spec import (
    NO_LEAVES,
    AttentionSpec,
    Blocks,
    Few,
    Four,
    Leaves,
    few_of,
    forward_choices,
    four_strides,
    keys_choices,
    queries_choices,
    spec_of,
)
from inductor.kernels.gpu.attention.plain import kernel_text
from inductor.kernels.gpu.text_launches import KernelName, TextLaunch
from inductor.runtime._launch import Allocation, KernelCall
from inductor.runtime.triton_binary import current_stream

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Forward:
    """One kernel and its results. nothing: stands for tensors that are not there."""

    call: KernelCall
    out: Allocation
    lse: Allocation | None
    nothing: torch.Tensor
    device: torch.device

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        mask: torch.Tensor | None, arrived: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """arrived: counters, of no use here."""
        out, lse = self.out(), self.nothing if self.lse is None else self.lse()
        b, m = q if bias is None else bias, q if mask is None else mask
        self.call(_stream(self.device), q, k, v, b, m, out, lse)
        return out, lse


@dataclass(frozen=True, slots=True)
class ForwardOfFew:
    """Chunks of the keys, and what comes of them together: a second kernel, or, where it is None,
    what the last program does that has counted itself."""

    call: KernelCall
    join: KernelCall | None
    part: Allocation
    sums: Allocation
    out: Allocation
    nothing: torch.Tensor
    device: torch.device

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        mask: torch.Tensor | None, arrived: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """arrived: counters, which are zeros, where there is no second kernel."""
        part, sums, out, stream = self.part(), self.sums(), self.out(), _stream(self.device)
        b, m = q if bias is None else bias, q if mask is None else mask
        counters = sums if arrived is None else arrived
        self.call(stream, q, k, v, b, m, part, sums, out, counters)
        if self.join is not None:
            self.join(stream, part, sums, out)
        return out, self.nothing


@dataclass(frozen=True, slots=True)
class Backward:
    """The three kernels of backward and their results. scores: gradients of all scores, if those
    of the bias are wanted; zeros where kernels do not write all of them."""

    delta: KernelCall
    keys: KernelCall
    queries: KernelCall
    results: tuple[Allocation, Allocation, Allocation]
    sums: Allocation
    scores: Allocation | None
    partly: bool
    nothing: torch.Tensor
    device: torch.device

    def __call__(
        self, grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        bias: torch.Tensor | None, mask: torch.Tensor | None, out: torch.Tensor,
        lse: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        stream = _stream(self.device)
        dq, dk, dv = (result() for result in self.results)
        delta, scores = self.sums(), self.nothing if self.scores is None else self.scores()
        if self.partly:
            scores.zero_()
        b, m = q if bias is None else bias, q if mask is None else mask
        self.delta(stream, out, grad, delta)
        self.keys(stream, q, k, v, b, m, grad, lse, delta, dk, dv)
        self.queries(stream, q, k, v, b, m, grad, lse, delta, dq, scores)
        if bias is None or self.scores is None:
            return dq, dk, dv, self.nothing
        return dq, dk, dv, scores.sum_to_size(bias.shape).to(bias.dtype)


@dataclass(slots=True)
class AttentionBackwardCall:
    """Gradients of attention by our kernels, for whatever tensors come."""

    known: dict[Key, Callable[..., Any]] = field(default_factory=dict)

    def __call__(
        self, grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        bias: torch.Tensor | None, mask: torch.Tensor | None, out: torch.Tensor,
        lse: torch.Tensor, causal: bool, scale: float, window: int, cap: float, nan_rows: bool,
        bias_grad: bool, leaves: Leaves,
    ) -> Any:
        """See `inductor.operators.attention_ops`."""
        key = (
            q.dtype, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(),
            grad.stride(), bias is not None and (bias.shape, bias.stride(), bias.dtype),
            mask is not None and (mask.shape, mask.stride()), causal, scale, window, cap, nan_rows,
            bias_grad, tuple(leaves), q.device,
        )  # fmt: skip
        backward = self.known.get(key)
        if backward is not None:
            return backward(grad, q, k, v, bias, mask, out, lse)
        facts: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "cap": cap}
        spec = spec_of(q, k, v, bias, mask, **facts, nan_rows=nan_rows, lse=True)
        fixed = spec, four_strides(grad), bias_grad, q.device
        made = [functools.partial(prepare_backward, *fixed, keys, queries, leaves)
                for keys, queries in zip(keys_choices(spec), queries_choices(spec), strict=False)]
        slow = functools.partial(
            reference_backward, **facts, nan_rows=nan_rows, bias_grad=bias_grad, leaves=leaves
        )
        given = grad, q, k, v, bias, mask, out, lse
        self.known[key], result = first_that_runs(made, slow, given)
        return result


def prepare_backward(
    spec: AttentionSpec, grad: Four, bias_grad: bool, device: torch.device,
    keys: Blocks | None = None, queries: Blocks | None = None, leaves: Leaves = NO_LEAVES,
) -> Backward:
    """The kernels of a spec, not compiled yet. grad: strides of the gradient of the result."""
    keys, queries = keys or keys_choices(spec)[0], queries or queries_choices(spec)[0]
    constants = spec.constants(grad, leaves) | {"HAS_DB": bias_grad}
    few = Blocks(64, 1, 4, 1)
    delta = TextLaunch.of(kernel("delta"), spec.grid(few), constants, few, 3)
    by_keys = TextLaunch.of(
        kernel("backward_keys"), spec.grid_of_keys(keys), constants, keys, 10
    )
    by_queries = TextLaunch.of(
        kernel("backward_queries"), spec.grid(queries), constants, queries, 10
    )
    results = [Allocation(*form, spec.dtype, device) for form in spec.gradients(leaves)]
    rows = spec.batch, spec.heads, spec.queries
    scores = Allocation(
        (*rows, spec.keys), _dense((*rows, spec.keys)), spec.dtype, device
    ) if bias_grad else None
    sums = Allocation(rows, _dense(rows), torch.float32, device)
    nothing = torch.empty(0, dtype=spec.dtype, device=device)
    partly = bias_grad and (spec.causal or spec.window > 0)
    return Backward(
        delta, by_keys, by_queries, (results[0], results[1], results[2]), sums, scores, partly,
        nothing, device,
    )


@dataclass(slots=True)
class AttentionCall:
    """Attention by our kernels: forward, for whatever tensors come."""

    known: dict[Key, Callable[..., Any]] = field(default_factory=dict)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        mask: torch.Tensor | None, causal: bool, scale: float, window: int, cap: float,
        nan_rows: bool, lse: bool, arrived: torch.Tensor | None = None,
    ) -> Any:
        """See `inductor.operators.attention_ops`."""
        key = (
            q.dtype, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(),
            bias is not None and (bias.shape, bias.stride(), bias.dtype),
            mask is not None and (mask.shape, mask.stride()), causal, scale, window, cap, nan_rows,
            lse, q.device, arrived is None,
        )  # fmt: skip
        forward = self.known.get(key)
        if forward is not None:
            return forward(q, k, v, bias, mask, arrived)
        facts: dict[str, Any] = {"causal": causal, "scale": scale, "window": window, "cap": cap}
        spec = spec_of(q, k, v, bias, mask, **facts, nan_rows=nan_rows, lse=lse)
        made: list[Callable[[], Callable[..., Any]]] = [
            functools.partial(prepare_forward, spec, q.device, blocks)
            for blocks in forward_choices(spec)
        ]
        few = few_of(spec)
        if few is not None:
            counted = arrived is not None
            made.insert(0, functools.partial(prepare_few, spec, few, q.device, counted))
        slow = functools.partial(_slow_forward, **facts, nan_rows=nan_rows, lse=lse)
        self.known[key], result = first_that_runs(made, slow, (q, k, v, bias, mask, arrived))
        if few is not None and isinstance(self.known[key], Forward):
            tell("attention of few queries does not share the keys: its kernel does not run here")
        return result


def prepare_forward(
    spec: AttentionSpec, device: torch.device, blocks: Blocks | None = None
) -> Forward:
    """The kernel of a spec, not compiled yet."""
    blocks = blocks or forward_choices(spec)[0]
    call = TextLaunch.of(kernel("forward"), spec.grid(blocks), spec.constants(), blocks, 7)
    size = (spec.batch, spec.heads, spec.queries, spec.value_head)
    out = Allocation(size, spec.out, spec.dtype, device)
    sums = Allocation(size[:3], _dense(size[:3]), torch.float32, device) if spec.lse else None
    nothing = torch.empty(0, dtype=torch.float32, device=device)
    return Forward(call, out, sums, nothing, device)


def _slow_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    mask: torch.Tensor | None, arrived: torch.Tensor | None, **facts: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    return reference_attention(q, k, v, bias, mask, **facts)


def prepare_few(
    spec: AttentionSpec, few: Few, device: torch.device, counted: bool = False
) -> ForwardOfFew:
    """The kernels of few queries, not compiled yet. counted: there are counters of programs."""
    size = (spec.batch, spec.heads, spec.queries, spec.value_head)
    shared = spec.batch * spec.kv_heads * few.splits
    constants = spec.constants() | {
        "SPLITS": few.splits, "CHUNK": few.chunk,
        "PAD_SPLITS": 1 << (few.splits - 1).bit_length(), "COUNTED": counted,
    }  # fmt: skip
    grid, each = (shared, 1, 1), (spec.batch * spec.heads * spec.queries, 1, 1)
    one = Blocks(1, 1, 4, 1)
    call = TextLaunch.of(kernel("few"), grid, constants, few.blocks, 9)
    join = None if counted else TextLaunch.of(kernel("join"), each, constants, one, 3)
    rows = shared * spec.queries * (spec.heads // spec.kv_heads)
    part = Allocation((rows, spec.value_head), (spec.value_head, 1), torch.float32, device)
    sums = Allocation((rows,), (1,), torch.float32, device)
    out = Allocation(size, spec.out, spec.dtype, device)
    nothing = torch.empty(0, dtype=torch.float32, device=device)
    return ForwardOfFew(call, join, part, sums, out, nothing, device)


def first_that_runs(
    choices: Sequence[Callable[[], Callable[..., Any]]], slow: Callable[..., Any],
    given: tuple[torch.Tensor | None, ...],
) -> tuple[Callable[..., Any], Any]:
    """The first choice that compiles and starts here (another machine has less memory for a
    block), or the slow way; and what it gives."""
    reason: Exception | None = None
    for choice in choices:
        try:
            call = choice()
            return call, call(*given)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if is_of_signal(error):
                raise
            reason = error
    tell(f"no kernel of attention runs here: {type(reason).__name__}: {reason}")
    return slow, slow(*given)


def tell(text: str) -> None:
    """Count and tell that a kernel does not do what it was made for."""
    refused(KERNEL, text, "attention")


def _stream(device: torch.device) -> int:
    """The stream to start kernels on; the interpreter's tensors have none."""
    return current_stream(device.index) if device.index is not None else 0


def _dense(size: Sequence[int]) -> tuple[int, ...]:
    steps, step = [], 1
    for n in reversed(size):
        steps.append(step)
        step *= n
    return tuple(reversed(steps))


@functools.cache
def _text() -> str:
    return kernel_text()


def kernel(name: str) -> KernelName:
    """One of our kernels of attention: `forward`, `delta`, .."""
    return KernelName(_text(), f"attention_{name}")
