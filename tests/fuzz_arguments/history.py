"""A history: a program, and calls of it with changes in between. `difference` says where compiled and eager part."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

import dynamo
from tests.fuzz_arguments.changes import CHANGES, STATES
from tests.fuzz_arguments.makings import MAKINGS, SECOND
from tests.fuzz_arguments.pieces import PIECES, WRITTEN
from tests.fuzz_arguments.world import World, make_world

# Exceptions of docs/semantics.md: "gradients of what was overwritten", "backward in parts".
OVERWRITTEN = "modified by an inplace operation"
IN_PARTS = "backward through the graph a second time"
SHAPES = [(2, 2)] * 6 + [(3, 3), (1, 1), (2,), (), (0, 2), (4, 2), (2, 2, 2)]


@dataclass(frozen=True)
class Call:
    """One call and what happens before it; names of rows in the tables."""

    changes: tuple[str, ...]
    first: str
    second: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    state: str
    learns: bool
    seed: int


@dataclass(frozen=True)
class History:
    seed: int
    pieces: tuple[str, ...]
    dynamic: bool | None
    calls: tuple[Call, ...]


def generate(seed: int) -> History:
    rnd = random.Random(seed)
    pieces = tuple(rnd.sample(sorted(PIECES), rnd.choice([1, 1, 2, 3])))
    firsts = rnd.sample(sorted(MAKINGS), rnd.choice([2, 4, 40]))
    seconds = rnd.sample(sorted(SECOND), rnd.choice([2, 4, 50]))
    shapes = rnd.choice([[(2, 2)], [(2, 2)], SHAPES])
    states = rnd.choice([["plain"], ["plain"], ["plain", rnd.choice(list(STATES))], list(STATES)])
    calls = []
    for _ in range(6):
        first = rnd.choice(shapes)
        calls.append(Call(
            tuple(rnd.sample(sorted(CHANGES), rnd.choice([0, 0, 1, 2]))), rnd.choice(firsts), rnd.choice(seconds),
            (first, rnd.choice([first, first, rnd.choice(shapes)])), rnd.choice(states), rnd.random() < 0.7, rnd.randrange(10**6),
        ))  # fmt: skip
    if "data =" in pieces:  # which memory backward takes is not promised
        calls = [replace(call, learns=False) for call in calls]
    return History(seed, pieces, rnd.choice([False, None, True]), tuple(calls))


def smaller(history: History) -> list[History]:
    """The same with one thing less."""
    found = [replace(history, calls=history.calls[:n] + history.calls[n + 1 :]) for n in range(len(history.calls))]
    found += [replace(history, pieces=history.pieces[:n] + history.pieces[n + 1 :]) for n in range(len(history.pieces))]
    for n, call in enumerate(history.calls):
        plain = [replace(call, changes=call.changes[:k] + call.changes[k + 1 :]) for k in range(len(call.changes))]
        plain += [replace(call, state="plain"), replace(call, first="fresh"), replace(call, second="fresh")]
        plain += [replace(call, shapes=((2, 2), (2, 2))), replace(call, learns=False)]
        found += [replace(history, calls=(*history.calls[:n], p, *history.calls[n + 1 :])) for p in plain if p != call]
    return [h for h in (*found, replace(history, dynamic=False)) if h.pieces and h.calls and h != history]


def program_of(names: tuple[str, ...]) -> Callable[..., Any]:
    lines = ", ".join(f"piece{n}(x, y, net, nest)" for n in range(len(names)))
    scope = {f"piece{n}": PIECES[name] for n, name in enumerate(names)}
    exec(f"def program(x, y, net, nest):\n    return ({lines},)\n", scope)
    return scope["program"]


def perform(world: World, call: Call, function: Callable[..., Any]) -> tuple[list[Any], str]:
    """One call: all that can be seen of it, and why its backward raises."""
    torch.default_generator.manual_seed(call.seed)
    for name in call.changes:
        try:
            CHANGES[name](world)
        except (RuntimeError, ValueError, AttributeError, TypeError):
            pass
    torch.default_generator.manual_seed(call.seed)
    values = [torch.randn(shape) for shape in call.shapes]
    try:
        x = MAKINGS[call.first](values[0], None, world)
        y = SECOND[call.second](values[1], x, world)
    except (RuntimeError, ValueError, AttributeError, TypeError, IndexError) as error:
        return [f"no arguments: {type(error).__name__}"], ""
    leaves = before_call(x, y, world)
    nest = {"x": x, "pair": (y, [x]), "items": [y]}
    try:
        with STATES[call.state]():
            results = function(x, y, world.net, nest)
    except Exception as error:
        results, seen = (), [("raises", type(error).__name__)]
    else:
        seen = []
    tensors = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    world.former = tensors or world.former
    why = ""
    if call.learns:
        back, why = backward(tensors, [t for t, version in leaves if is_leaf(t) or version_of(t) == version])
        seen.append(back)
    seen += describe({"x": x, "y": y, **named_state(world, nest)}, results)
    return seen, why


def named_state(world: World, nest: Any) -> dict[str, Any]:
    own = {k: v for k, v in vars(world.net).items() if isinstance(v, torch.Tensor | float | int)}
    items = {f"nest {n}": v for n, v in enumerate(pytree.tree_leaves(nest))}
    kept = {f"kept {k}": v for k, v in world.kept.items()}
    named = dict(world.net.named_parameters(remove_duplicate=False))
    return {**named, **dict(world.net.named_buffers(remove_duplicate=False)), **own, **items, **kept}


def before_call(x: torch.Tensor, y: torch.Tensor, world: World) -> list[tuple[torch.Tensor, int]]:
    """What gradients are asked of, and its version: where it is written, its new history is the graph's."""
    found = {id(t): (t, version_of(t)) for t in (x, y, *world.net.parameters()) if learns(t)}
    return list(found.values())


def version_of(x: torch.Tensor) -> int:
    """-1 for a tensor of inference mode, which counts no writes."""
    return -1 if x.is_inference() else x._version


def is_leaf(x: torch.Tensor) -> bool:
    """False also for a view that torch does not tell it of: its base has been written in another mode."""
    try:
        return x.is_leaf
    except RuntimeError:
        return False


def learns(x: torch.Tensor) -> bool:
    try:
        return x.requires_grad and (x.is_leaf or x.grad_fn is not None)
    except RuntimeError:
        return False


def backward(tensors: list[torch.Tensor], leaves: list[torch.Tensor]) -> tuple[Any, str]:
    learned = [t for t in tensors if learns(t) and (t.is_floating_point() or t.is_complex())]
    if not learned or not leaves:
        return "no gradients", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = sum(torch.view_as_real(t.resolve_conj()).sin().sum() if t.is_complex() else t.sin().sum() for t in learned)
            grads = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
            for leaf, grad in zip(leaves, grads):
                if leaf.is_leaf and grad is not None:
                    leaf.grad = grad.clone() if leaf.grad is None else leaf.grad + grad
    except RuntimeError as error:
        return ("backward raises", type(error).__name__), str(error)
    return [None if g is None else (str(g.dtype), tuple(g.shape), listed(g)) for g in grads], ""


def listed(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return x.detach().resolve_conj().resolve_neg().tolist()


def describe(named: dict[str, Any], results: Any) -> list[Any]:
    """Values, layouts, flags; which one is the same object, lies in the same memory, at which place."""
    leaves, form = pytree.tree_flatten(results)
    objects: dict[int, str] = {}
    memory: dict[int, str] = {}
    seen: list[Any] = [str(form)]
    for name, x in [*named.items(), *((f"result {n}", x) for n, x in enumerate(leaves))]:
        if not isinstance(x, torch.Tensor):
            seen.append((name, type(x).__name__, x if isinstance(x, float) else repr(x)))
            continue
        place = memory.setdefault(x.untyped_storage()._cdata, name)
        mine = place in named
        seen.append((
            name, type(x).__name__, str(x.dtype), tuple(x.shape), steps(x), listed(x), x.requires_grad, x.is_inference(),
            x.is_conj(), x.is_neg(), objects.setdefault(id(x), name), place if x.numel() else "", x.storage_offset() if mine else 0,
            x._is_view() if mine else None, history_of(x, objects, mine),
        ))  # fmt: skip
    return seen


def history_of(x: torch.Tensor, objects: dict[int, str], mine: bool) -> Any:
    """What autograd knows of a tensor, or that it says it is of two modes."""
    try:
        base = objects.get(id(x._base), "") if mine and x._is_view() and not x.is_inference() else ""
        grad = (str(x.grad.dtype), listed(x.grad)) if x.is_leaf and x.grad is not None else None
        return x.is_leaf, base, grad
    except RuntimeError as error:
        return type(error).__name__


def steps(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(step for size, step in zip(x.shape, x.stride()) if size > 1) if x.numel() else ()


def near(a: Any, b: Any) -> bool:
    if isinstance(a, float | complex) and isinstance(b, float | complex):
        same = a == b or (a != a and b != b)
        return same or abs(a - b) <= 1e-2 * max(1, abs(a)) or not math.isfinite(abs(a)) and not math.isfinite(abs(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(near, a, b))
    return a == b


def difference(history: History, compiler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> str:
    """Where compiled and eager differ, or nothing."""
    eager = program_of(history.pieces)
    dynamo.reset()
    compiled = compiler(program_of(history.pieces))
    worlds = make_world(history.seed), make_world(history.seed)
    for n, call in enumerate(history.calls):
        want, why = perform(worlds[0], call, eager)
        got, ours = perform(worlds[1], call, compiled)
        if want[0] != got[0] and (OVERWRITTEN in why or IN_PARTS in ours):
            return ""
        if raised(want) and raised(got) and want[0] == got[0] and any(name in WRITTEN for name in history.pieces):
            return ""  # a graph that writes can't run twice: effects behind it have not been made
        if not near(want, got):
            return f"call {n}: {parting(want, got)}"
    return ""


def raised(seen: list[Any]) -> bool:
    return seen[0][0] == "raises"


def parting(want: Any, got: Any, place: str = "") -> str:
    """Where two descriptions part, as deep as it goes."""
    if isinstance(want, list | tuple) and isinstance(got, list | tuple) and len(want) == len(got):
        n = next(n for n, (a, b) in enumerate(zip(want, got)) if not near(a, b))
        name = want[0] if want and isinstance(want[0], str) else ""
        return parting(want[n], got[n], f"{place} {name}[{n}]")
    return f"{place}: eager {str(want)[:400]}, compiled {str(got)[:400]}"
