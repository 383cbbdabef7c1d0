"""What a compiled call costs beyond its graph: a tiny function, and guards that grow with a module.

    python benchmarks/guard_overhead.py [--peer]

Prints nanoseconds, minimum and median of rounds in which the calls take turns; `--peer` adds
torch.compile(backend="eager").
"""

from __future__ import annotations

import argparse
import builtins
import gc
import inspect
import statistics
import timeit
from collections.abc import Callable
from typing import Any

import torch

import dynamo
from dynamo import hook


def best(call: Callable[[], Any], seconds: float = 0.1, repeats: int = 7) -> float:
    """Nanoseconds of one call."""
    return interleaved({"": call}, seconds, repeats)[""][0]


def interleaved(
    calls: dict[str, Callable[[], Any]], seconds: float = 0.03, repeats: int = 31
) -> dict[str, tuple[float, float]]:
    """Nanoseconds of one call, minimum and median; the calls take turns."""
    numbers = {
        name: max(1, int(seconds / max(timeit.timeit(call, number=3) / 3, 1e-8)))
        for name, call in calls.items()
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(timeit.timeit(call, number=numbers[name]) / numbers[name] * 1e9)
    return {name: (min(found), statistics.median(found)) for name, found in times.items()}


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def identity(x: int) -> int:
    return x


def our_check(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that checks our guards of a module's forward, and their instructions."""
    compiled = dynamo.compile(model, backend="eager")
    compiled(*args, **kwargs)
    region = type(compiled)._policy.region
    entry = hook.entries(torch.nn.Module._call_impl.__code__, region)[0]
    scope = {"self": compiled, "args": args, "kwargs": kwargs}
    module_globals = torch.nn.Module._call_impl.__globals__
    run = entry.program.run
    assert run(scope, module_globals, builtins.__dict__)[2]
    return lambda: run(scope, module_globals, builtins.__dict__), len(entry.program.dump())


def their_check(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that checks torch.compile's guards of a module's forward, in C++ as a call does."""
    from torch._dynamo.guards import GuardManagerWrapper

    def managers() -> list[Any]:
        return [found.root for found in gc.get_objects() if type(found) is GuardManagerWrapper]

    torch._dynamo.reset()
    before = managers()
    torch.compile(model, backend="eager", fullgraph=True)(*args, **kwargs)
    (manager,) = [new for new in managers() if not any(new is old for old in before)]
    forward = type(model).forward  # captured is this function, or a decorator's in its place
    scope = {**inspect.getclosurevars(forward).nonlocals, "args": args, "kwargs": kwargs}
    scope.update(inspect.signature(forward).bind(model, *args, **kwargs).arguments)
    assert manager.check(scope)
    return lambda: manager.check(scope)


class Layers(torch.nn.Module):
    """Linear layers one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def bert(layers: int = 12) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A BERT of small width, and its inputs."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=16, num_attention_heads=2, intermediate_size=32,
        vocab_size=64, max_position_embeddings=16,
    )
    ids = torch.randint(64, (1, 8))
    return BertModel(config).eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


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


def whole_call(compile_it: Callable[..., Any], layers: int = 12) -> Callable[[], Any]:
    """A call of a transformer without its graph."""
    model = torch.nn.Sequential(*[Block(8) for _ in range(layers)]).eval()
    x = torch.randn(1, 4, 8)
    with torch.no_grad():
        compiled = compile_it(model, backend=remembers)
        for _ in range(3):
            compiled(x)
    return torch.no_grad()(lambda: compiled(x))


def called(compile_it: Callable[..., Any]) -> Callable[[], Any]:
    """A call of `x + 1` with the eager backend."""
    x, compiled = torch.randn(16), compile_it(add_one, backend="eager")
    compiled(x)
    return lambda: compiled(x)


def report(title: str, calls: dict[str, Callable[[], Any]]) -> None:
    """A line per call: minimum, median and both as parts of the first one's."""
    print(title)
    times = interleaved(calls)
    low, middle = next(iter(times.values()))
    for name, (least, median) in times.items():
        ratio = f"{least / low:8.2f} {median / middle:8.2f}"
        print(f"    {name:16} min {least:9.0f}  median {median:9.0f}   {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="also time torch.compile")
    peer = parser.parse_args().peer
    x = torch.randn(16)
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: add_one(x)}
    calls["ours"] = called(dynamo.compile)
    if peer:
        calls["torch.compile"] = called(torch.compile)
    report("x + 1 on 16 floats", calls)

    skipping = hook.Region(lambda frame: hook.SKIP)
    wrapped = hook.Compiled(skipping, identity)
    calls = {"plain": lambda: identity(1), "in": lambda: wrapped(1)}
    report("entering and leaving a region", calls)

    value = torch.randn(2, 8)
    models: list[tuple[str, torch.nn.Module, tuple[Any, ...], dict[str, Any]]] = [
        *((f"MLP of {n} layers", Layers(n), (value,), {}) for n in (1, 10, 100)),
        ("BERT of 12 layers", bert()[0], (), bert()[1]),
    ]
    for name, model, args, kwargs in models:
        ours, count = our_check(model, args, kwargs)
        calls = {"ours": ours}
        if peer:
            calls["torch.compile"] = their_check(model, args, kwargs)
        report(f"guards of a {name} ({count} instructions)", calls)

    calls = {"ours": whole_call(dynamo.compile)}
    if peer:
        calls["torch.compile"] = whole_call(torch.compile)
    report("a call of 12 transformer layers, without the graph", calls)


if __name__ == "__main__":
    main()
