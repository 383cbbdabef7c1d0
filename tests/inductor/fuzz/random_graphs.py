"""Random tensor programs for the default backend, against eager.

`python tests/inductor/fuzz/random_graphs.py --count 500 --seed 0` runs many and prints the seeds
that differ. A program is a list of steps over a growing list of tensors; each step is one torch
call whose operands fit. Values stay bounded so that rounding does not hide or fake differences.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from inductor.driver.compile_fx import compile_fx

Tensors = list[torch.Tensor]
Step = Callable[[Tensors], Any]
DIMS = (1, 2, 3, 4, 6, 8, 16)


def unary(rng: random.Random, pool: Tensors) -> Step | None:
    at = rng.randrange(len(pool))
    function = rng.choice(
        [torch.tanh, torch.sigmoid, F.gelu, F.relu, torch.sin, torch.neg, torch.abs, F.silu,
         lambda x: x * 0.5 + 1, lambda x: x.clamp(-1, 1), lambda x: torch.where(x > 0, x, x * 0.1),
         lambda x: (x > 0).to(x.dtype), lambda x: torch.sqrt(torch.abs(x) + 0.1)]
    )  # fmt: skip
    return lambda values: function(values[at])


def binary(rng: random.Random, pool: Tensors) -> Step | None:
    pairs = [(a, b) for a in range(len(pool)) for b in range(len(pool)) if _broadcasts(pool[a], pool[b])]
    a, b = rng.choice(pairs)
    function = rng.choice(
        [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum,
         lambda x, y: x / (y.abs() + 1), lambda x, y: torch.where(x > y, x, y)]
    )  # fmt: skip
    return lambda values: function(values[a], values[b])


def reduction(rng: random.Random, pool: Tensors) -> Step | None:
    at = rng.randrange(len(pool))
    rank = pool[at].dim()
    if rank == 0:
        return None
    dims = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))
    keep = rng.random() < 0.6
    function = rng.choice([torch.sum, torch.mean, torch.amax, torch.amin])
    scale = 1.0 / 8 if function is torch.sum else 1.0
    return lambda values: function(values[at], dim=dims, keepdim=keep) * scale


def normalise(rng: random.Random, pool: Tensors) -> Step | None:
    at = rng.randrange(len(pool))
    x = pool[at]
    if x.dim() == 0 or x.shape[-1] < 2:
        return None
    dim = rng.randrange(x.dim())
    return rng.choice(
        [lambda v: v[at].softmax(dim), lambda v: v[at].log_softmax(dim) * 0.1,
         lambda v: F.layer_norm(v[at], x.shape[-1:]),
         lambda v: v[at].var(dim, correction=0, keepdim=True)]
    )  # fmt: skip


def view(rng: random.Random, pool: Tensors) -> Step | None:
    at = rng.randrange(len(pool))
    x = pool[at]
    if x.dim() < 1:
        return lambda v: v[at].reshape(1)
    order = rng.sample(range(x.dim()), x.dim())
    dim = rng.randrange(x.dim())
    half = max(x.shape[dim] // 2, 1)
    shape = _reshaped(rng, x)
    return rng.choice(
        [lambda v: v[at].permute(order), lambda v: v[at].reshape(shape),
         lambda v: v[at].narrow(dim, 0, half), lambda v: v[at].narrow(dim, x.shape[dim] - half, half),
         lambda v: v[at].unsqueeze(dim), lambda v: v[at].select(dim, 0), lambda v: v[at].flip(dim),
         lambda v: v[at].permute(order).contiguous(), lambda v: v[at].unsqueeze(0).expand(2, *x.shape)]
    )  # fmt: skip


def join(rng: random.Random, pool: Tensors) -> Step | None:
    at = rng.randrange(len(pool))
    x = pool[at]
    if x.dim() == 0:
        return None
    dim = rng.randrange(x.dim())
    same = [n for n, y in enumerate(pool) if _joins(x, y, dim)]
    picked = [at] + [rng.choice(same) for _ in range(rng.randint(1, 5))]
    pads = (rng.randint(0, 2), rng.randint(0, 2))
    kinds = [lambda v: torch.cat([v[n] for n in picked], dim), lambda v: F.pad(v[at], pads)]
    return rng.choice(kinds)


def index(rng: random.Random, pool: Tensors) -> Step | None:
    at = rng.randrange(len(pool))
    x = pool[at]
    if x.dim() == 0:
        return None
    dim = rng.randrange(x.dim())
    picked = torch.tensor([rng.randrange(x.shape[dim]) for _ in range(rng.randint(1, 6))])
    return lambda v: v[at].index_select(dim, picked)


def product(rng: random.Random, pool: Tensors) -> Step | None:
    pairs = [
        (a, b) for a, x in enumerate(pool) for b, y in enumerate(pool)
        if x.dim() == 2 and y.dim() == 2 and x.shape[1] == y.shape[0]
    ]
    if not pairs:
        return None
    a, b = rng.choice(pairs)
    return lambda v: v[a] @ v[b] / 8


def in_place(rng: random.Random, pool: Tensors) -> Step | None:
    at = rng.randrange(len(pool))
    x = pool[at]
    if x.dim() == 0:
        return None
    dim = rng.randrange(x.dim())

    def step(v: Tensors) -> torch.Tensor:
        copy = v[at].clone()
        copy.select(dim, 0).mul_(2)
        return copy

    return step


STEPS = [(unary, 6), (binary, 6), (reduction, 3), (normalise, 3), (view, 5), (join, 2), (index, 1),
         (product, 1), (in_place, 1)]  # fmt: skip


def _broadcasts(x: torch.Tensor, y: torch.Tensor) -> bool:
    return all(a in (b, 1) or b == 1 for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))


def _joins(x: torch.Tensor, y: torch.Tensor, dim: int) -> bool:
    return x.dim() == y.dim() and all(
        a == b for n, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if n != dim
    )


def _reshaped(rng: random.Random, x: torch.Tensor) -> list[int]:
    count, shape = x.numel(), []
    while count > 1 and len(shape) < 4:
        size = rng.choice([d for d in (2, 3, 4, 6, 8, 16, count) if count % d == 0])
        shape.append(size)
        count //= size
    if count > 1:
        shape.append(count)
    return shape or [1]


class Program:
    """A random program: `run(inputs)` gives its outputs; `inputs(seed)` makes fresh ones."""

    def __init__(self, seed: int, length: int = 12) -> None:
        rng = random.Random(seed)
        base = [rng.choice(DIMS) for _ in range(rng.randint(1, 4))]
        self.shapes = [base, base, base[-1:], [base[-1], rng.choice(DIMS)]][: rng.randint(2, 4)]
        self.strided = [rng.random() < 0.25 for _ in self.shapes]
        self.steps: list[Step] = []
        pool = self.inputs(seed)
        while len(self.steps) < length:
            maker = rng.choices([s for s, _ in STEPS], [w for _, w in STEPS])[0]
            step = maker(rng, pool)
            if step is None:
                continue
            made = step(pool)
            if made.numel() == 0 or made.numel() > 20_000:
                continue
            self.steps.append(step)
            pool.append(made)
        count = len(self.shapes)
        candidates = range(count, len(pool))
        self.kept = sorted({len(pool) - 1, *rng.sample(candidates, rng.randint(1, 3))})

    def inputs(self, seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for shape, strided in zip(self.shapes, self.strided, strict=True):
            x = torch.randn(shape, generator=generator)
            made.append(x.transpose(0, -1).contiguous().transpose(0, -1) if strided else x)
        return made

    def run(self, inputs: Tensors) -> Tensors:
        values = list(inputs)
        for step in self.steps:
            values.append(step(values))
        return [values[n] for n in self.kept]


def traced(program: Program) -> torch.fx.GraphModule:
    """The program as a captured graph with one placeholder for each input."""
    names = ", ".join(f"a{n}" for n in range(len(program.shapes)))
    source = f"lambda {names}: tuple(program.run([{names}]))"
    return torch.fx.symbolic_trace(eval(source, {"program": program}))


def difference(program: Program, compiled: Any, seed: int) -> str:
    """What differs from eager on fresh inputs; empty if nothing does."""
    inputs = program.inputs(seed)
    want = program.run([x.clone(memory_format=torch.preserve_format) for x in inputs])
    exact = program.run([x.double() for x in inputs])
    for n, (got, ref, best) in enumerate(zip(compiled(*inputs), want, exact, strict=True)):
        if (got.shape, got.dtype) != (ref.shape, ref.dtype):
            return f"output {n}: {got.dtype}{list(got.shape)} for {ref.dtype}{list(ref.shape)}"
        bound = 1e-4 + 4 * (ref.double() - best).abs().max().item()
        away = (got.double() - ref.double()).abs().max().item()
        if not away <= bound:
            return f"output {n}: {away:.2e} away from eager"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=12)
    options = parser.parse_args()
    wrong = 0
    for seed in range(options.seed, options.seed + options.count):
        program = Program(seed, options.length)
        try:
            compiled = compile_fx(traced(program), program.inputs(seed))
            why = difference(program, compiled, seed + 1)
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:300]}"
        if why:
            wrong += 1
            print(f"seed {seed}: {why}", flush=True)
    print(f"{options.count} programs, {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
