"""Random small kernels: stages that load in many ways, reduce, and hand values on in locals."""

from __future__ import annotations

import random
from math import prod

import torch
from triton_kernels import Case, stage

from inductor.ir.index import as_index, constant, floordiv, mod
from inductor.scheduler.schedule import Kernel, Local

F32, I64 = torch.float32, torch.int64
UNARY = ["neg", "abs", "tanh", "floor", "sign", "sigmoid", "sin"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]


class Maker:
    """One random kernel."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.buffers: dict[str, torch.Tensor] = {}
        pick = self.rng.choice
        self.outer = tuple(pick([1, 2, 3, 5, 17]) for _ in range(pick([0, 1, 1, 2])))
        self.inner = tuple(pick([1, 3, 8, 13, 20]) for _ in range(pick([1, 1, 2])))
        self.scalars: list[str] = []
        self.tiles: list[str] = []

    def buffer(self, elements: int, dtype: torch.dtype = F32, high: int = 0) -> str:
        name = f"b{len(self.buffers)}"
        if high:
            value = torch.randint(-high, high, (elements,), generator=self.generator)
        elif dtype is torch.bool:
            value = torch.rand(elements, generator=self.generator) > 0.5
        else:
            value = torch.randn(elements, generator=self.generator).to(dtype)
        self.buffers[name] = value
        return name

    def index(self, loops, extents):
        """A random way to look at memory: permuted, broadcast, shifted, or through a view."""
        rng = self.rng
        order = list(range(len(loops)))
        rng.shuffle(order)
        index, size = constant(0), 1
        for axis in order:
            if rng.random() < 0.8:
                index = index + as_index(loops[axis]) * size
                size *= extents[axis]
        if size > 3 and rng.random() < 0.3:
            step = rng.choice([2, 3])
            half = -(-size // step)
            index = floordiv(index, step) + mod(index, step) * half
            size = half * step
        shift = rng.choice([0, 0, 4])
        return index + shift, size + shift

    def load(self, ops, loops, extents):
        rng = self.rng
        index, size = self.index(loops, extents)
        dtype = rng.choice([F32, F32, F32, torch.float16, torch.bfloat16, I64, torch.bool])
        kind = rng.random()
        if kind < 0.15:
            position = ops.load(self.buffer(size, I64, high=6), index, I64)
            index, size = ops.indirect(position, 6) * 2 + (loops[0] if extents and extents[0] <= 2 else 0), 13
            value = ops.load(self.buffer(size, dtype), index, dtype)
        elif kind < 0.3:
            limit = rng.randrange(size + 1)
            mask = ops.lt(ops.index_expr(index), ops.constant(limit, I64))
            name = self.buffer(max(limit, 1), dtype)
            value = ops.masked(mask, lambda: ops.load(name, index, dtype), 1)
        else:
            value = ops.load(self.buffer(size, dtype), index, dtype)
        return ops.to_dtype(value, F32)

    def expression(self, ops, loops, extents, values):
        for _ in range(self.rng.randrange(1, 4)):
            values.append(self.load(ops, loops, extents))
        for _ in range(self.rng.randrange(1, 5)):
            if self.rng.random() < 0.4:
                values.append(ops.call(self.rng.choice(UNARY), self.rng.choice(values)))
            else:
                values.append(ops.call(self.rng.choice(BINARY), self.rng.choice(values), values[-1]))
        if self.rng.random() < 0.2:
            values.append(ops.where(ops.gt(values[-1], values[0]), values[-1], values[0]))
        return values[-1]

    def held(self, ops, loops):
        """Values of locals."""
        position = constant(0)
        for loop, extent in zip(loops, self.inner, strict=True):
            position = position * extent + loop
        values = [ops.load(name, constant(0), F32) for name in self.scalars if self.rng.random() < 0.6]
        return values + [ops.load(name, position, F32) for name in self.tiles if self.rng.random() < 0.6], position

    def flat_index(self, loops, extents):
        total = constant(0)
        for loop, extent in zip(loops, extents, strict=True):
            total = total * extent + loop
        return total

    def reduction_stage(self):
        def body(ops, o, i, r):
            values, position = self.held(ops, r)
            loops, extents = (*o, *r), (*self.outer, *self.inner)
            value = self.expression(ops, loops, extents, values)
            kind = self.rng.choice(["sum", "max", "min", "argmax"])
            if kind == "argmax":
                result = ops.to_dtype(ops.reduction(kind, value, ops.index_expr(position)), F32)
            else:
                result = ops.reduction(kind, value)
            if self.rng.random() < 0.5:
                result = ops.call(self.rng.choice(UNARY), result)
            name = f"l{len(self.scalars)}"
            ops.store(name, constant(0), result)
            if self.rng.random() < 0.3:
                ops.store(self.buffer(prod(self.outer)), self.flat_index(o, self.outer), result)
            if self.rng.random() < 0.5 and prod(self.inner) > 1:
                tile = f"e{len(self.tiles)}"
                ops.store(tile, position, value)
                new.append(tile)
            if self.rng.random() < 0.3:
                size = prod(extents)
                ops.store(self.buffer(size), self.flat_index(loops, extents), value)
            self.scalars.append(name)

        new: list[str] = []
        made = stage(self.outer, (), self.inner, body)
        self.tiles += new
        return made

    def plain_stage(self):
        def body(ops, o, i, r):
            values, position = self.held(ops, i)
            loops, extents = (*o, *i), (*self.outer, *self.inner)
            value = self.expression(ops, loops, extents, values)
            if self.rng.random() < 0.2:
                place = ops.indirect(ops.load(self.buffer(prod(extents), I64, high=5), self.flat_index(loops, extents), I64), 5)
                ops.store(self.buffer(5), place, value, "add")
            ops.store(self.buffer(prod(extents)), self.flat_index(loops, extents), value)
            if self.rng.random() < 0.3 and prod(self.inner) > 1:
                tile = f"e{len(self.tiles)}"
                ops.store(tile, position, value)
                new.append(tile)

        new: list[str] = []
        made = stage(self.outer, self.inner, (), body)
        self.tiles += new
        return made

    def kernel(self) -> Case:
        stages = []
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            stages.append(self.reduction_stage() if self.rng.random() < 0.7 else self.plain_stage())
        stages.append(self.plain_stage())
        locals_ = [Local(name, F32, 1) for name in self.scalars]
        locals_ += [Local(name, F32, prod(self.inner)) for name in self.tiles]
        return Kernel(f"random_{self.rng.randrange(1000)}", self.outer, tuple(stages), tuple(locals_)), self.buffers


def random_kernel(seed: int) -> Case:
    return Maker(seed).kernel()
