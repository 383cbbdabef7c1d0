"""Python's `random` inside of compiled functions: the same numbers, and the same state behind them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from tests.features.programs import rows_of

SETUP = """
import math, random, torch
from random import random as drawn, randint
rng = random.Random(3)
class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.rng = random.Random(1); self.scale = 0.5
    def forward(self, x): return x + self.rng.uniform(-self.scale, self.scale)
class Odd(random.Random):
    def random(self): return 0.25
noisy, odd, log, kept = Noisy(), Odd(1), [], {}
def helper(): return random.random() * 2
def printing(v): log.append(v); return v
"""
# `# name | number of graphs of three calls`; more than the name says is an error.
ROWS = rows_of("""
# one number | 1
return x * random.random()
# several, in order | 1
return x * random.random() + random.uniform(1, 2) - random.gauss(0, 1), x + random.random()
# ints | 1
return x * random.randint(1, 6) + random.randrange(10), random.randrange(0, 100, 7), random.getrandbits(20)
# all kinds | 1
return (x + random.triangular(0, 1) + random.betavariate(1, 2) + random.expovariate(2.0) + random.gammavariate(1, 2)
        + random.lognormvariate(0, 1) + random.normalvariate(0, 1) + random.vonmisesvariate(0, 1)
        + random.paretovariate(2) + random.weibullvariate(1, 2))
# imported names | 1
return x * drawn() + randint(0, 3)
# an instance | 1
return x * rng.random() + rng.gauss(0, 1) + random.random()
# of a module | 1
return noisy(x) * 2
# returned | 1
return random.random(), x + 1, [random.randint(0, 9)], {"u": random.uniform(0, 3)}
# nothing but a draw | 0
return random.random()
# not used | 1
random.random(); random.gauss(0, 1); return x + 1
# arithmetic | 1
a = random.random() * 2 - 1; return x * a + (a + 1), a, -a
# in a helper and a loop | 1
for i in range(4): x = x * helper() + i
return x
# kept in an object | 3
kept["u"] = random.random(); log.append(random.random()); return x + 1
# with torch's own | 1
return torch.rand(3) * random.random() + x.sum()
# in an int dtype | 1
return (x * 10).long() * random.random(), torch.full((2,), random.random()), torch.tensor(3) * random.randint(1, 5)
# a branch | 9
return x * 2 if random.random() < 0.5 else x - 1
# a branch behind a graph | 9
x = x.sin(); p = random.random()
if p < 0.3: x = x + 1
return x * p
# choose | 9
return x * random.choice([1, 2, 3]) + random.random()
# shuffle | 9
a = [1, 2, 3, 4]; random.shuffle(a); return x * a[0] + random.random(), a
# sample and choices | 9
return x + random.random(), random.sample(range(9), 3), random.choices("abc", k=4), random.random()
# seed | 9
a = random.random(); random.seed(4); return x * a + random.random()
# state | 9
s = random.getstate(); a = random.random(); random.setstate(s); return x * a, random.random() == a
# state of an instance | 9
s = rng.getstate(); a = rng.random(); rng.setstate(s); return x * a + rng.random()
# a subclass | 9
return x * odd.random() + odd.uniform(0, 2)
# a new generator | 9
r = random.Random(7); return x * r.random() + r.randint(0, 5)
# a new generator is kept | 9
r = random.Random(3); r.random(); kept["r"] = r; kept["s"] = [r]; a = r.random(); return x * a, kept["r"] is r
# a kept generator is used | 9
r = random.Random(3); a = r.choice([1, 2]); dynamo.graph_break(); b = r.random(); return x * a + b, r.getstate() == rng.getstate()
# a new generator without a seed | 9
return random.Random().random() < 2, random.Random(None) is None, x + 1
# sets and dicts | 9
r = random.Random(1)
try: return r.choice({1: 2, 0: 3}), r.sample({1, 2}, 1)
except TypeError as e: return x + 1, str(e)
# wrong arguments | 9
try: return x * random.randint(5, 1)
except ValueError as e: return x + random.random(), str(e)
# wrong number of arguments | 9
try: return x * random.uniform(1)
except TypeError: return x + random.random()
# a large number | 9
return x + 1, random.getrandbits(100), random.randint(0, 10 ** 30)
# a size | 9
return torch.zeros(random.randint(1, 5)).sum() + x, random.random()
# an index | 9
return x[random.randint(0, 1)], x[random.randrange(2), 1] + random.random()
# a break between | 9
a = random.random(); dynamo.graph_break(); return x * a + random.random()
# in math | 9
return x * math.sqrt(random.random()), int(random.random() * 10), round(random.random(), 2), str(random.random())
# compared and logical | 9
a, b = random.random(), random.random(); return x * max(a, b) + min(a, b), a < b, a == b, bool(a), a and b
# a list of numbers | 9
return torch.tensor([random.random(), 1.0]) + x.sum(), x * [random.random() for _ in range(3)][1]
# an error behind the draw | 9
try: return x * random.random() @ torch.ones(7)
except RuntimeError: return random.random(), x
# an error of the graph | 9
i, r = torch.tensor([7]), random.random()
try: return (x * r)[i] * random.random()
except IndexError: return x * random.random()
# a with block | 1
with torch.no_grad(): a = x * random.random()
return a + random.random()
""")


def scope_of(text: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"dynamo": dynamo}
    exec(SETUP, scope)
    exec("def f(x):\n" + "\n".join(f"    {line}" for line in text.splitlines()), scope)
    return scope


def outcome(f: Callable[..., Any], scope: dict[str, Any], seed: int) -> Any:
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        result = f(torch.ones(2, 2) * seed)
    except Exception as error:
        result = type(error)
    states = [random.getstate(), scope["rng"].getstate(), scope["noisy"].rng.getstate(), torch.rand(1)]
    kept = {name: value.getstate() if isinstance(value, random.Random) else value for name, value in scope["kept"].items()}
    return re.sub(r" at 0x\w+", "", repr((result, scope["log"], kept, states)))


@pytest.mark.draws
@pytest.mark.parametrize("name", ROWS)
def test_same_numbers(name: str) -> None:
    text, graphs = ROWS[name]
    dynamo.reset()
    seen: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(module)
        return module.forward

    eager, traced = scope_of(text), scope_of(text)
    compiled = dynamo.compile(traced["f"], backend=backend, fullgraph=graphs == 1)
    for seed in random.sample(range(1000), 3):
        want, got = outcome(eager["f"], eager, seed), outcome(compiled, traced, seed)
        assert want == got, f"eager    {want[:300]}\ncompiled {got[:300]}"
    assert len(seen) <= graphs, f"{len(seen)} graphs"


def test_a_new_number_in_each_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * random.random() + random.randint(0, 1000)

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    assert len({float(compiled(torch.ones(()))) for _ in range(20)}) > 10


def test_gradients() -> None:
    def f(x: torch.Tensor) -> Any:
        scale = random.random()
        return (x * scale).sum(), scale

    x = torch.rand(3, requires_grad=True)
    loss, scale = dynamo.compile(f, backend="eager", fullgraph=True)(x)
    loss.backward()
    assert torch.equal(x.grad, torch.full((3,), scale))  # type: ignore[arg-type]


def test_by_the_default_backend() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x.sin() * random.random()
        return y.exp() + random.randint(1, 9), random.gauss(0, 1)

    compiled = dynamo.compile(f, fullgraph=True)
    for _ in range(3):
        x, state = torch.rand(4), random.getstate()
        want = f(x)
        behind = random.getstate()
        random.setstate(state)
        got = compiled(x)
        torch.testing.assert_close(got, want)
        assert random.getstate() == behind
