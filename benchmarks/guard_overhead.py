"""What a compiled call costs beyond its graph: small programs, and guards that grow with a module.

    python benchmarks/guard_overhead.py [--peer]

Prints nanoseconds, minimum and median of rounds in which the calls take turns; `--peer` adds
torch.compile with the same backend.
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


def add_five(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return a + b + c + d + e


def breaks_once(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y * 2 if y.sum() > 0 else y - 1


def fuses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y) * 2


def takes_keywords(x: torch.Tensor, *, scale: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
    return x * scale + shift


def takes_numbers(x: torch.Tensor, n: int, s: float, d: dict[str, float]) -> torch.Tensor:
    return x[n:] * s + d["bias"]


def flattens(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1) + 1


class Scaler:
    """An object whose attributes its method reads."""

    def __init__(self) -> None:
        self.weight, self.scale, self.sizes = torch.randn(16), 2.0, [1, 2]

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale + len(self.sizes)


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


def program(f: Any, *args: Any, **kwargs: Any) -> Callable[..., Callable[[], Any]]:
    """What makes of a compiler the call of a function that it compiles."""

    def make(compile_it: Callable[[Any], Any]) -> Callable[[], Any]:
        compiled = compile_it(f)
        return lambda: compiled(*args, **kwargs)

    return make


def training_step(compile_it: Callable[[Any], Any]) -> Callable[[], Any]:
    """Forward and backward of a small MLP."""
    model, x = Layers(2), torch.randn(4, 8)
    compiled, parameters = compile_it(model), list(model.parameters())

    def step() -> None:
        compiled(x).sum().backward()
        for parameter in parameters:
            parameter.grad = None

    return step


def three_sizes(compile_it: Callable[[Any], Any]) -> Callable[[], Any]:
    """Three calls with tensors of other sizes."""
    compiled, (a, b, c) = compile_it(flattens), [torch.randn(n, 4) for n in (3, 5, 7)]
    return lambda: (compiled(a), compiled(b), compiled(c))


def programs() -> list[tuple[str, Callable[..., Callable[[], Any]], dict[str, Any]]]:
    """(what is called, what makes the call, arguments of the compiler)"""
    a, b, c, d, e = (torch.randn(16).abs() for _ in range(5))
    linear, batch = torch.nn.Linear(16, 16), torch.randn(4, 16)
    eager, default, dynamic = {"backend": "eager"}, dict[str, Any](), {"dynamic": True}
    return [
        ("x + 1 on 16 floats", program(add_one, a), eager),
        ("Linear(16, 16)", program(linear, batch), eager),
        ("Linear(16, 16), default backend", program(linear, batch), default),
        ("five tensors", program(add_five, a, b, c, d, e), eager),
        ("one graph break", program(breaks_once, a), eager),
        ("a training step", training_step, eager),
        ("a training step, default backend", training_step, default),
        ("relu(x + y) * 2, default backend", program(fuses, a, b), default),
        ("keyword arguments", program(takes_keywords, a, scale=b), eager),
        ("a method", program(Scaler.run, Scaler(), a), eager),
        ("an int, a float, a dict", program(takes_numbers, a, 3, 0.5, {"bias": 1.0}), eager),
        ("three dynamic sizes", three_sizes, eager | dynamic),
        ("three dynamic sizes, default backend", three_sizes, dynamic),
    ]


def compared(
    make: Callable[..., Callable[[], Any]], arguments: dict[str, Any], peer: bool
) -> dict[str, Callable[[], Any]]:
    """The calls of one program: as it is, and by each compiler."""
    calls = {"eager": make(lambda f: f), "ours": make(lambda f: dynamo.compile(f, **arguments))}
    if peer:
        calls["torch.compile"] = make(lambda f: torch.compile(f, **arguments))
    for call in calls.values():
        for _ in range(3):
            call()
    return calls


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
    for title, make, arguments in programs():
        report(title, compared(make, arguments, peer))

    skipping = hook.Region(lambda frame: hook.SKIP)
    wrapped = hook.Compiled(skipping, identity)
    calls: dict[str, Callable[[], Any]] = {"plain": lambda: identity(1), "in": lambda: wrapped(1)}
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
