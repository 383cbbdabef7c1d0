"""What a compiled call costs beyond its graph: a tiny function, and guards that grow with a module.

    python benchmarks/guard_overhead.py [--peer]

Prints nanoseconds, the best of many repeats; `--peer` adds torch.compile(backend="eager").
"""

from __future__ import annotations

import argparse
import builtins
import timeit
from collections.abc import Callable
from typing import Any

import torch

import dynamo
from dynamo import hook


def best(call: Callable[[], Any], seconds: float = 0.1, repeats: int = 7) -> float:
    """Nanoseconds of one call."""
    number = max(1, int(seconds / max(timeit.timeit(call, number=3) / 3, 1e-8)))
    return min(timeit.repeat(call, number=number, repeat=repeats)) / number * 1e9


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def identity(x: int) -> int:
    return x


def guard_check(layers: int) -> tuple[float, int]:
    """Nanoseconds of checking the guards of an MLP of so many layers, and instructions."""
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(layers)])
    compiled = dynamo.compile(model, backend="eager")
    value = torch.randn(2, 8)
    compiled(value)
    region = type(compiled)._policy.region
    entry = hook.entries(torch.nn.Module._call_impl.__code__, region)[0]
    scope = {"self": compiled, "args": (value,), "kwargs": {}}
    module_globals = torch.nn.Module._call_impl.__globals__
    run = entry.program.run
    assert run(scope, module_globals, builtins.__dict__)[2]
    cost = best(lambda: run(scope, module_globals, builtins.__dict__))
    return cost, len(entry.program.dump())


class Block(torch.nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def remembers(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend whose graph runs once: what is left of a call is the compiler's own cost."""
    known: list[Any] = []

    def call(*args: Any) -> Any:
        if not known:
            known.append(module.forward(*args))
        return known[0]

    return call


def whole_call(compile_it: Callable[..., Any], layers: int = 12) -> float:
    """Nanoseconds of a call of a transformer without its graph."""
    model = torch.nn.Sequential(*[Block(8) for _ in range(layers)]).eval()
    x = torch.randn(1, 4, 8)
    with torch.no_grad():
        compiled = compile_it(model, backend=remembers)
        for _ in range(3):
            compiled(x)
        return best(lambda: compiled(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="also time torch.compile")
    options = parser.parse_args()
    x = torch.randn(16)
    eager = best(lambda: add_one(x))
    ours = dynamo.compile(add_one, backend="eager")
    ours(x)
    print(f"x + 1 on 16 floats: eager {eager:.0f}, compiled +{best(lambda: ours(x)) - eager:.0f}")
    if options.peer:
        theirs = torch.compile(add_one, backend="eager")
        theirs(x)
        print(f"  torch.compile +{best(lambda: theirs(x)) - eager:.0f}")
    plain, skipping = best(lambda: identity(1)), hook.Region(lambda frame: hook.SKIP)
    wrapped = hook.Compiled(skipping, identity)
    print(f"entering and leaving a region: +{best(lambda: wrapped(1)) - plain:.0f}")
    for layers in (1, 10, 100):
        cost, count = guard_check(layers)
        print(f"guards of {layers} Linear layers: {cost:.0f} ({count} instructions)")
    print(f"a call of 12 transformer layers, without the graph: {whole_call(dynamo.compile):.0f}")
    if options.peer:
        print(f"  torch.compile {whole_call(torch.compile):.0f}")


if __name__ == "__main__":
    main()
