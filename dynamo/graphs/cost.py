"""What each operation of a graph costs: FLOPs, bytes and seconds, by node and by the user's line.

In: a `torch.fx` graph module and its arguments. Out: `Costs`, which prints as a roofline table: for
each row the time that the machine needs at its best, for the arithmetic or for the memory, and
which of the two decides ("torch.fx", section 6.3 of the paper: shape and FLOP analysis).

Shapes come from fake tensors, so that a model of any size is analysed without running it. The
FLOPs of GEMMs, convolutions and attention are those of `torch.utils.flop_counter`, a
multiplication and an addition counted as two; any other operator counts one for each element that
it reads or writes. The bytes of a node are those of its tensors, read and written once: what one
kernel for this node alone would move.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.graphs.lines import Line, user_line

aten = torch.ops.aten
CALLS = ("call_function", "call_method", "call_module")


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a machine reaches: floating point operations and bytes in a second."""

    flops: float
    bandwidth: float

    def seconds(self, flops: int, moved: int) -> float:
        """The least time for so many operations and bytes (the roofline)."""
        return max(flops / self.flops, moved / self.bandwidth)

    def __str__(self) -> str:
        return f"{self.flops / 1e9:.0f} GFLOP/s, {self.bandwidth / 1e9:.1f} GB/s"


@dataclass(frozen=True, slots=True)
class Cost:
    """name: of a node, or a line. count: operations. seconds: measured, or None."""

    name: str
    operation: str
    result: str
    line: Line
    flops: int
    moved: int
    count: int = 1
    seconds: float | None = None

    def plus(self, other: Cost) -> Cost:
        seconds = None if self.seconds is None else self.seconds + (other.seconds or 0.0)
        return replace(self, flops=self.flops + other.flops, moved=self.moved + other.moved,
                       count=self.count + other.count, seconds=seconds)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Costs:
    """nodes: in the order of the graph. peaks: of the machine, or None."""

    nodes: tuple[Cost, ...]
    peaks: Peaks | None = None

    @property
    def flops(self) -> int:
        return sum(node.flops for node in self.nodes)

    @property
    def moved(self) -> int:
        return sum(node.moved for node in self.nodes)

    def by_line(self) -> tuple[Cost, ...]:
        """One row for each line of the program, in the order in which it is first reached."""
        found: dict[Line, Cost] = {}
        for node in self.nodes:
            known = found.get(node.line)
            row = replace(node, name=str(node.line), operation="", result="")
            found[node.line] = row if known is None else known.plus(row)
        return tuple(found.values())

    def table(self, rows: Iterable[Cost] | None = None) -> str:
        """The rows (those by line unless given) and their sum."""
        rows = list(self.by_line() if rows is None else rows)
        total = Cost("total", "", "", rows[0].line, 0, 0, 0, 0.0) if rows else None
        if total is not None:
            timed = all(row.seconds is not None for row in rows)
            for row in rows:
                total = total.plus(row)
            rows.append(total if timed else replace(total, seconds=None))
        width = max([len(_title(row)) for row in rows], default=4)
        head = f"{'':{width}} {'ops':>5} {'GFLOP':>9} {'MB':>9} {'FLOP/B':>7}"
        head += f" {'limit':>7} {'ms at best':>10}" if self.peaks else ""
        timed = any(row.seconds is not None for row in rows)
        head += f" {'ms':>9}" + (f" {'of best':>7}" if self.peaks else "") if timed else ""
        lines = [head] + [self._row(row, width) for row in rows]
        return "\n".join(([f"machine: {self.peaks}"] if self.peaks else []) + lines)

    def _row(self, row: Cost, width: int) -> str:
        intensity = row.flops / row.moved if row.moved else 0.0
        text = f"{_title(row):{width}} {row.count:5} {row.flops / 1e9:9.4f}"
        text += f" {row.moved / 1e6:9.3f} {intensity:7.1f}"
        if self.peaks:
            best = self.peaks.seconds(row.flops, row.moved)
            memory = row.moved / self.peaks.bandwidth >= row.flops / self.peaks.flops
            text += f" {'memory' if memory else 'compute':>7} {1e3 * best:10.4f}"
        if row.seconds is not None:
            text += f" {1e3 * row.seconds:9.4f}"
            if self.peaks:
                text += f" {best / row.seconds if row.seconds else 0.0:7.0%}"
        return text

    def __str__(self) -> str:
        return self.table()


def _title(row: Cost) -> str:
    return " ".join(filter(None, (row.name, row.operation, row.result)))[:88]


def analyze(
    module: fx.GraphModule, *args: Any, peaks: Peaks | None = None, measure: int = 0
) -> Costs:
    """The costs of a graph with these arguments.

    peaks: of the machine, as `measure_peaks` gives them. measure: so many times each node is run,
    and the median of its seconds kept; without, nothing is computed.
    Errors: whatever the graph raises for these arguments.

    >>> class Double(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x @ x
    >>> analyze(fx.symbolic_trace(Double()), torch.ones(8, 8)).flops
    1024
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        given = pytree.tree_map_only(Tensor, fake.from_tensor, args)
        counted = _Counting(module)
        counted.run(*given)
    found = counted.costs
    if measure:
        timing = _Timing(module, measure)
        with torch.no_grad():
            timing.run(*args)
        found = [replace(cost, seconds=timing.seconds[cost.name]) for cost in found]
    return Costs(tuple(found), peaks)


class _Counting(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.costs: list[Cost] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in CALLS:
            return super().run_node(n)
        before = [*_tensors(self.map_nodes_to_values((n.args, n.kwargs), n))]
        if n.op == "call_module":
            before += self.module.get_submodule(str(n.target)).parameters()
        with _Operators() as operators:
            result = super().run_node(n)
        made = [*_tensors(result)]
        moved = 0 if _is_view(made, before) else _moved(before, made, operators.gathers)
        target = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "?")
        shapes = ", ".join(f"{_short(t.dtype)}{list(t.shape)}" for t in made)
        self.costs.append(Cost(n.name, target, shapes, user_line(n), operators.flops, moved))
        return result


class _Operators(OwnDispatchMode):
    """Adds up the FLOPs of the ATen operators that run in it."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.gathers = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.flops += flops_of(func, args, kwargs or {}, result)
        self.gathers |= func in GATHERS
        return result


def flops_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int:
    """The operations of one call of an ATen operator."""
    rule = FLOPS.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
    if rule is not None:
        return int(rule(*args, **kwargs, out_val=result))
    read, made = [*_tensors((args, kwargs))], [*_tensors(result)]
    if not made or _is_view(made, read) or func in MOVES:
        return 0
    return max(tensor.numel() for tensor in (*read, *made))


# These read only as much of a table as they give.
GATHERS = {aten.embedding.default, aten.index_select.default, aten.gather.default,
           aten.index.Tensor}  # fmt: skip
MOVES = {*GATHERS, aten.clone.default, aten._to_copy.default, aten.cat.default, aten.copy_.default,
         aten.empty.memory_format, aten.full.default}  # fmt: skip


def _attention_flops(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    *batch, rows, width = query.shape
    return 2 * math.prod(batch) * rows * key.shape[-2] * (width + value.shape[-1])


FLOPS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
}


class _Timing(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, times: int) -> None:
        super().__init__(module)
        self.times = times
        self.seconds: dict[str, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in CALLS:
            return super().run_node(n)
        result = super().run_node(n)
        found = []
        for _ in range(self.times):
            _wait(result)
            start = time.perf_counter()
            result = super().run_node(n)
            _wait(result)
            found.append(time.perf_counter() - start)
        self.seconds[n.name] = statistics.median(found)
        return result


def _wait(value: Any) -> None:
    for tensor in _tensors(value):
        if tensor.device.type == "cuda":
            torch.cuda.synchronize(tensor.device)
            return


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _bytes(tensor: Tensor) -> int:
    """Of the elements, each once: an expanded tensor is as large as what it repeats."""
    sizes = [size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step]
    return math.prod(sizes) * tensor.dtype.itemsize if tensor.numel() else 0


def _moved(read: list[Tensor], made: list[Tensor], gathers: bool) -> int:
    written = sum(map(_bytes, made))
    each = [_bytes(tensor) for tensor in {id(tensor): tensor for tensor in read}.values()]
    return written + sum(min(size, written) if gathers else size for size in each)


def _is_view(made: list[Tensor], read: list[Tensor]) -> bool:
    known = {_storage(tensor) for tensor in read}
    return bool(made) and all(_storage(tensor) in known for tensor in made)


def _storage(tensor: Tensor) -> int:
    storage = tensor.untyped_storage()
    return storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def measure_peaks(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Peaks:
    """What a large GEMM and a large copy reach here, the best of some tries.

    Takes about a second.
    """
    left, right = (torch.randn(1024, 1024, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(1 << 25, device=device)
    target = torch.empty_like(source)
    gemm = _best(lambda: left @ right, device)
    copied = _best(lambda: target.copy_(source), device)
    return Peaks(2 * 1024**3 / gemm, 2 * _bytes(source) / copied)


def _best(call: Callable[[], Any], device: str) -> float:
    found: list[float] = []
    end = time.perf_counter() + 0.4
    while time.perf_counter() < end or len(found) < 5:
        start = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return min(found)
