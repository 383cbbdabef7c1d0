"""Runs a program in eager and compiled, call by call, and says what differs."""

from __future__ import annotations

import copy
import linecache
import math
import random
import re
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from tests.fuzz_identity.program import Program, calls, result, statement

# Exceptions of docs/semantics.md: "gradients of what was overwritten", "backward in parts", "gradients of gradients", "hooks from outside".
OVERWRITTEN = "modified by an inplace operation"
IN_PARTS = "backward through the graph a second time"


UNKNOWN = "no history"
# Of results of the default backend, which may lie in memory of their own where eager's are views.
OF_MEMORY = ("version", "view", "nbytes", "offset")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("b", torch.randn(4, 4))
        self.state = torch.randn(4, 4)


class World:
    """What one run of all calls reads and writes."""

    count = 0

    def __init__(self, source: str) -> None:
        torch.default_generator.manual_seed(0)
        World.count += 1
        name = f"<identity {World.count}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        self.box = types.SimpleNamespace(t=torch.randn(4, 4), items=[torch.randn(4, 4)], pair=(torch.randn(4, 4), 1))
        self.scope: dict[str, Any] = {
            "torch": torch, "nn": nn, "F": F, "dynamo": dynamo, "copy": copy, "weakref": weakref, "net": Net(), "box": self.box, "KEPT": [torch.randn(4, 4)],
            "TABLE": {"k": torch.randn(4, 4)}, "LAST": torch.randn(4, 4), "LOG": [], "outs": [torch.randn(4, 4)], "fresh": lambda: torch.randn(4, 4),
            "a": torch.randn(4, 4), "b": torch.randn(4, 4),
        }  # fmt: skip
        exec(compile(source, name, "exec"), self.scope)
        self.program = self.scope["program"]

    def execute(self, text: str) -> str:
        try:
            exec(text, self.scope)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def tensors(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """(where, leaf) for each leaf of a nest."""
    if isinstance(value, list | tuple):
        for n, item in enumerate(value):
            yield from tensors(item, f"{place}[{n}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{place}[{key!r}]")
    elif isinstance(value, types.SimpleNamespace):
        yield from tensors(vars(value), place)
    else:
        yield place, value


def perform(world: World, call: Any, function: Callable[..., Any]) -> tuple[dict[str, Any], str]:
    """What can be seen after a call, and the text of an error."""
    scope = world.scope
    torch.default_generator.manual_seed(1)
    before = [world.execute(text) for text in (*call.changes, call.making)]
    seen: dict[str, Any] = {"before": [text.split(":")[0] for text in before]}
    scope["LOG"].clear()
    why, results = "".join(before), ()
    try:
        results = function(scope["a"], scope["b"], scope["net"], scope["box"])
    except Exception as error:
        seen["raises"], why = type(error).__name__, f"{type(error).__name__}: {error}"
    outs = [t for _, t in tensors(results, "r") if isinstance(t, torch.Tensor)]
    if call.learns and outs:
        seen["backward"], why = backward(outs)
    scope["outs"] = outs or scope["outs"]
    seen |= describe(scope, results)
    return seen, why


def backward(outs: list[torch.Tensor]) -> tuple[str, str]:
    learned = {id(t): t for t in outs if t.requires_grad and t.is_floating_point()}
    if not learned:
        return "", ""
    try:
        sum((t * t).sum() for t in learned.values()).backward()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def describe(scope: dict[str, Any], results: Any) -> dict[str, Any]:
    roots = {
        "a": scope["a"], "b": scope["b"], "net.w": scope["net"].w, "net.b": scope["net"].b, "net.state": scope["net"].state, "KEPT": scope["KEPT"],
        "TABLE": scope["TABLE"], "LAST": scope["LAST"], "box": scope["box"], "LOG": scope["LOG"], "result": results, "former": scope["outs"],
    }  # fmt: skip
    objects: dict[int, str] = {}
    memory: dict[int, str] = {}
    seen: dict[str, Any] = {}
    leaves = [leaf for name, value in roots.items() for leaf in tensors(value, name)]
    for place, x in leaves:
        seen[place] = facts(place, x, objects, memory)
    for place, x in leaves:
        if isinstance(x, torch.Tensor):
            for name in ("grad", "tag", "_base"):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    other = getattr(x, name, None)
                seen[f"{place}.{name}"] = facts(f"{place}.{name}", other, objects, memory, name != "_base")
    return seen


def facts(place: str, x: Any, objects: dict[int, str], memory: dict[int, str], new: bool = True) -> Any:
    if not isinstance(x, torch.Tensor):
        return (type(x).__name__, x if isinstance(x, int | float | str | tuple) else "")
    if not new:
        return ("tensor", objects.get(id(x), "of its own"))
    try:
        history = x.grad_fn is not None
    except RuntimeError:  # a view of several whose base was written
        return ("tensor", objects.setdefault(id(x), place), UNKNOWN)
    first = id(x) not in objects
    mine = objects.setdefault(id(x), place)
    where = memory.setdefault(x.untyped_storage()._cdata, place) if x.untyped_storage().nbytes() else ""
    if not first:
        return ("tensor", mine)
    return (
        "tensor", mine, type(x).__name__, str(x.dtype), tuple(x.shape), x.stride(), ("offset", x.storage_offset()), where, ("nbytes", x.untyped_storage().nbytes()), ("requires_grad", x.requires_grad),
        ("leaf", x.is_leaf), ("history", history), ("view", x._is_view()), ("version", x._version), ("retains", x.retains_grad), ("hooks", bool(x._backward_hooks)), listed(x),
    )  # fmt: skip


def listed(x: torch.Tensor) -> Any:
    return x.detach().tolist()


def near(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= 1e-3 * max(1, abs(a)) or not math.isfinite(a) and not math.isfinite(b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(near, a, b))
    return type(a) is type(b) and a == b


def allowed(place: str, want: Any, got: Any) -> bool:
    """Whether what differs is an exception of docs/semantics.md for the default backend."""
    if place.endswith("._base"):
        return True
    if not isinstance(want, tuple) or not isinstance(got, tuple) or len(want) != len(got):
        return False
    return all(near(a, b) or (isinstance(a, tuple) and a[:1] and a[0] in OF_MEMORY) for a, b in zip(want, got))


def difference(program: Program, compiler: Callable[[Callable[..., Any]], Callable[..., Any]], exact: bool = True) -> str:
    """Where compiled and eager part, or nothing. `exact`: versions and bases are compared, too."""
    dynamo.reset()
    worlds = World(program.source()), World(program.source())
    compiled = compiler(worlds[1].program)
    for n, call in enumerate(program.calls):
        want, why = perform(worlds[0], call, worlds[0].program)
        got, ours = perform(worlds[1], call, compiled)
        if not exact and (OVERWRITTEN in why or IN_PARTS in ours) and outcome(want) != outcome(got):
            return ""
        if any(want.get(key) and want[key] == got.get(key) for key in ("raises", "backward")):
            return ""  # effects behind a graph that writes may be missing, and gradients are gathered in another order
        if any(isinstance(fact, tuple) and fact[-1:] == (UNKNOWN,) for fact in want.values()):
            return ""  # autograd refuses to tell
        if list(want) != list(got):
            return f"call {n}: eager has {[k for k in want if k not in got]} {why}, compiled {[k for k in got if k not in want]} {ours}"
        for place in want:
            if not near(want[place], got[place]) and (exact or not allowed(place, want[place], got[place])):
                return f"call {n}, {place}: {parting(want[place], got[place])} {why} | {ours}"
    return ""


def outcome(seen: dict[str, Any]) -> Any:
    return seen["before"], seen.get("backward"), seen.get("raises")


def parting(want: Any, got: Any) -> str:
    if isinstance(want, list | tuple) and isinstance(got, list | tuple) and len(want) == len(got):
        return "; ".join(f"eager {a!r:.300}, compiled {b!r:.300}" for a, b in zip(want, got) if not near(a, b))
    return f"eager {want!r:.300}, compiled {got!r:.300}"


def generate(seed: int, exact: bool = True) -> Program:
    """Its lines run in eager on the first call's arguments; a last line may be one that raises."""
    rnd = random.Random(seed)
    todo, names, lines = calls(rnd), ["a", "b", "a", "b"], []
    length = rnd.randrange(4, 16)
    for n in range(60):
        line, name = statement(rnd, names, n)
        if not exact and re.search(r"_version|_base|_is_view|nbytes", line) or not runs([*lines, line], todo):
            continue
        if line.startswith("del "):
            names = [k for k in names if k != line[4:]] or names
            if line[4:] in names:
                continue
        lines.append(line)
        names += [name] if name else []
        if len(lines) >= length:
            break
    for _ in range(20):
        line = result(rnd, names)
        if runs([*lines, line], todo):
            break
    return Program((*lines, line), todo)


def runs(lines: list[str], todo: Any) -> bool:
    world = World(Program(tuple(lines), todo).source())
    world.execute(todo[0].making)
    scope = world.scope
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            world.program(scope["a"], scope["b"], scope["net"], scope["box"])
        except Exception:
            return False
    return True
