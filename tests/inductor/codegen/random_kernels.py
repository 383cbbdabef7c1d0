"""Random small kernels whose results are exact: floats hold small integers only.

A stage loads from buffers of random layout (permuted, broadcast, with offset, through // and %),
computes with random operations in random dtypes, reduces or not, and stores.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import prod

import torch

from inductor.ir.body import LoopBody, trace_body
from inductor.ir.index import Index, constant, floordiv, mod
from inductor.scheduler.schedule import Kernel, Local, local_position, outer_variables

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64)
LIMIT = 4096  # iterations of a stage


@dataclass
class Maker:
    rng: random.Random
    storages: dict[str, torch.Tensor] = field(default_factory=dict)

    def ranges(self, count: int, limit: int) -> tuple[int, ...]:
        sizes: list[int] = []
        for _ in range(count):
            fitting = [s for s in SIZES if s * prod(sizes) <= limit]
            sizes.append(self.rng.choice(fitting))
        return tuple(sizes)

    def position(self, loops: list[tuple[Index, int]], dense: bool) -> tuple[Index, int]:
        """An index over the loops and the number of elements it needs."""
        loops = list(loops)
        self.rng.shuffle(loops) if self.rng.random() < 0.4 else None
        total, step, high = constant(0), 1, 0
        for index, size in reversed(loops):
            if not dense and self.rng.random() < 0.2:
                continue  # broadcast
            if not dense and size > 2 and self.rng.random() < 0.15:
                part = self.rng.choice([2, 3, 4])
                index = (floordiv if self.rng.random() < 0.5 else mod)(index + 1, part)
                size = index.high + 1
            total = total + index * step
            high += (size - 1) * step
            step *= size + (self.rng.random() < 0.15)
        offset = self.rng.choice([0, 0, 0, 3])
        return total + offset, high + offset + 1

    def buffer(self, dtype: torch.dtype, count: int, prefix: str = "in") -> str:
        name = f"{prefix}{len(self.storages)}"
        if dtype is torch.bool:
            data = torch.rand(count) < 0.5
        elif dtype is torch.uint8:
            data = torch.randint(0, 9, (count,), dtype=dtype)
        else:
            data = torch.randint(-5, 6, (count,)).to(dtype)
        self.storages[name] = data if prefix == "in" else torch.zeros_like(data)
        return name

    def load(self, ops, loops):
        dtype = self.rng.choice((*INTEGERS, *HALVES, *FLOATS, *FLOATS, torch.bool))
        index, count = self.position(loops, dense=False)
        value = ops.load(self.buffer(dtype, count), index, dtype)
        return ops.to_dtype(value, torch.float32) if dtype in HALVES else value

    def convert(self, ops, value, dtype):
        return ops.to_dtype(value, dtype)

    def combine(self, ops, a, b):
        dtype = self.rng.choice([a.dtype, b.dtype])
        if dtype is torch.bool:
            a, b = self.convert(ops, a, dtype), self.convert(ops, b, dtype)
            return ops.call(self.rng.choice(["bitwise_and", "bitwise_xor", "maximum"]), a, b)
        a, b = self.convert(ops, a, dtype), self.convert(ops, b, dtype)
        name = self.rng.choice(["add", "sub", "maximum", "minimum", "where", "lt", "eq", "mul"])
        if name == "where":
            return ops.where(ops.le(a, b), b, ops.constant(2, dtype))
        return ops.call(name, a, b)

    def shrink(self, ops, value):
        """The same value kept small, so that float arithmetic stays exact."""
        if value.dtype is torch.bool:
            return value
        limit = ops.constant(6, value.dtype)
        low = ops.constant(0 if value.dtype is torch.uint8 else -6, value.dtype)
        return ops.maximum(ops.minimum(value, limit), low)

    def expression(self, ops, loops, depth: int = 3):
        if depth == 0 or self.rng.random() < 0.15:
            if loops and self.rng.random() < 0.15:
                index, _ = self.position(loops, dense=False)
                return ops.index_expr(mod(index, 7), self.rng.choice([torch.int64, torch.float32]))
            if loops and self.rng.random() < 0.2:
                return self.gather(ops, loops)
            return self.load(ops, loops)
        a = self.expression(ops, loops, depth - 1)
        b = self.expression(ops, loops, depth - 1)
        if self.rng.random() < 0.15:
            mask = ops.gt(a, ops.constant(0, a.dtype))
            loaded = ops.masked(mask, lambda: self.load(ops, loops), 1)
            return self.combine(ops, b, loaded)
        return self.shrink(ops, self.combine(ops, a, b))

    def gather(self, ops, loops):
        index, count = self.position(loops, dense=False)
        where = ops.load(self.buffer(torch.int64, count), index, torch.int64)
        table = self.buffer(torch.float32, 6 * 4)
        extra, _ = self.position(loops, dense=False)
        return ops.load(table, ops.indirect(where, 6) * 4 + mod(extra, 4), torch.float32)

    def clean(self, ops):
        for name, data in self.storages.items():
            if data.dtype is torch.int64 and name.startswith("in"):
                data.clamp_(-6, 5)

    def scatter(self, ops, value, loops) -> None:
        """Add into places that the data chooses; some loops may be told from the place."""
        kept = [loop for loop in loops if self.rng.random() < 0.6]
        index, count = self.position(kept, dense=True)
        where, needed = self.position(loops, dense=False)
        row = ops.load(self.buffer(torch.int64, needed), where, torch.int64)
        rows = ops.indirect(row, 6)
        total = rows * count + index if self.rng.random() < 0.7 else rows + index * 6
        value = self.shrink(ops, self.convert(ops, value, torch.int32))
        ops.store(self.buffer(torch.int32, count * 6, "out"), total, value, "add")

    def store(self, ops, value, loops) -> None:
        if value.dtype is not torch.bool and self.rng.random() < 0.15:
            self.scatter(ops, value, loops)
            return
        index, count = self.position(loops, dense=True)
        ops.store(self.buffer(value.dtype, count, "out"), index, value)

    def reduce(self, ops, loops, inner, depth: int = 2):
        value = self.expression(ops, loops + inner, depth)
        if value.dtype is torch.bool:
            return ops.reduction(self.rng.choice(["any", "max", "min"]), value)
        kind = self.rng.choice(["sum", "sum", "max", "min", "argmax", "argmin"])
        if kind.startswith("arg"):
            place = constant(0)
            for index, size in inner:
                place = place * size + index
            return ops.reduction(kind, value, ops.index_expr(place))
        if kind == "sum" and value.dtype in (torch.int8, torch.uint8, torch.int16):
            value = ops.to_dtype(value, torch.int64)
        return ops.reduction(kind, value)

    def stage(self, outer: list[tuple[Index, int]], limit: int) -> LoopBody:
        reducing = self.rng.random() < 0.5
        ranges = self.ranges(self.rng.choice([0, 1, 1, 2, 3]), limit)
        inner = self.ranges(self.rng.choice([1, 1, 2]), limit // max(prod(ranges), 1) or 1)

        def body(ops, i, r):
            loops = outer + list(zip(i, ranges, strict=True))
            if not reducing:
                for _ in range(self.rng.choice([1, 1, 2])):
                    self.store(ops, self.expression(ops, loops), loops)
                return
            within = list(zip(r, inner, strict=True))
            result = self.reduce(ops, loops, within)
            if self.rng.random() < 0.4:  # a second pass that uses the result
                inside = self.combine(ops, self.expression(ops, loops + within, 1), result)
                inside = self.shrink(ops, inside)
                if self.rng.random() < 0.5:
                    self.store(ops, inside, loops + within)
                result = self.combine(ops, result, ops.reduction("max", inside))
            if self.rng.random() < 0.4:
                result = self.combine(ops, result, self.expression(ops, loops, 1))
            self.store(ops, result, loops)

        return trace_body(ranges, inner if reducing else (), body)


def random_kernel(seed: int) -> tuple[Kernel, dict[str, torch.Tensor]]:
    """A kernel and its buffers."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    maker = Maker(rng)
    outer = maker.ranges(rng.choice([0, 0, 1, 2]), 100)
    variables = list(zip(outer_variables(outer), outer, strict=True))
    limit = LIMIT // max(prod(outer), 1)
    stages = [maker.stage(variables, limit) for _ in range(rng.choice([1, 1, 2]))]
    locals_: list[Local] = []
    if rng.random() < 0.4:
        stages += _through_local(maker, variables, limit, locals_)
    maker.clean(None)
    return Kernel(f"kernel{seed}", outer, tuple(stages), tuple(locals_)), maker.storages


def _through_local(maker: Maker, outer, limit: int, locals_: list[Local]) -> list[LoopBody]:
    """Two stages: the second reads what the first one left in a local."""
    ranges = maker.ranges(2, limit)
    place = local_position(trace_body(ranges, (), lambda ops, i, r: None))
    locals_.append(Local("line", torch.float32, prod(ranges)))

    def write(ops, i, r):
        value = maker.expression(ops, outer + list(zip(i, ranges, strict=True)))
        ops.store("line", place, ops.to_dtype(value, torch.float32))

    def read(ops, i, r):
        value = ops.load("line", place, torch.float32)
        maker.store(ops, ops.neg(value), outer + list(zip(i, ranges, strict=True)))

    return [trace_body(ranges, (), write), trace_body(ranges, (), read)]
