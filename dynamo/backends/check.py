"""What a backend has to do, as programs: `python -m dynamo.backends.check NAME`.

NAME: of a registered backend, or "module:attribute". Each program runs in eager and compiled by the
backend, from equal states; results, gradients, writes, aliases and errors are compared. Prints a
table; the exit status is 1 where something differs, 2 where the backend can't be used here.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dynamo
from dynamo.backends.programs import PROGRAMS, Program
from dynamo.base.counters import counters
from dynamo.base.errors import InvalidBackend

CLOSE = {"rtol": 2e-3, "atol": 2e-3}  # of float32: engines add in other orders

NO_GRAPH = "no graph was made: eager was compared with itself"


@dataclass(frozen=True)
class Outcome:
    """What is compared. shared: which of the tensors around a call share memory."""

    values: list[Any]
    shared: list[Any]
    errors: list[Any]


def run(program: Program, compiled: Callable[[Any], Any]) -> Outcome:
    """The calls of a program, from a state that is always the same."""
    torch.manual_seed(0)
    model = program.make()
    state = list(model.state_dict().values()) if isinstance(model, nn.Module) else []
    call, calls = compiled(model), copy.deepcopy(list(program.calls()))
    outcome = Outcome([], [], [])
    torch.manual_seed(1)
    for given in calls:
        try:
            with torch.set_grad_enabled(program.trains):
                results = call(*given)
                if program.trains:
                    results.square().sum().backward()
        except Exception as error:
            outcome.errors.append(type(error))
            continue
        grads = [p.grad for p in model.parameters()] if program.trains else []
        values = pytree.tree_leaves([results, given, state, grads])
        outcome.values.append(copy.deepcopy([detached(value) for value in values]))
        tensors = [value for value in values if isinstance(value, Tensor)]
        outcome.shared.append([
            (m, n) for n, one in enumerate(tensors) for m, other in enumerate(tensors[:n])
            if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0])
    return outcome


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def difference(one: Outcome, other: Outcome) -> str:
    """How the second differs from the first, or ""."""
    if one.errors != other.errors:
        return f"errors {named(other.errors)}, eager {named(one.errors)}"
    if one.shared != other.shared:
        return "other tensors share memory"
    for wanted, found in zip(one.values, other.values, strict=True):
        if len(wanted) != len(found):
            return f"{len(found)} values, eager {len(wanted)}"
        for left, right in zip(wanted, found, strict=True):
            if not isinstance(left, Tensor):
                if left != right or type(left) is not type(right):
                    return f"{right!r}, eager {left!r}"
                continue
            tolerance = CLOSE if left.dtype is torch.float32 else {}
            try:
                torch.testing.assert_close(
                    right, left, equal_nan=True, check_stride=True, **tolerance)  # type: ignore[arg-type]
            except AssertionError as error:
                return str(error).replace("\n", " ")[:120]
    return ""


def named(errors: Sequence[type]) -> str:
    return ", ".join(error.__name__ for error in errors) or "none"


def check(backend: str | Callable[..., Any]) -> list[tuple[str, str, int]]:
    """(program, difference or "", parts that ran as captured) of each program."""
    rows = []
    graphs = 0
    for program in PROGRAMS:
        dynamo.reset()
        eager = run(program, lambda model: model)

        def compiled(model: Any, dynamic: bool | None = program.dynamic) -> Any:
            return dynamo.compile(model, backend=backend, dynamic=dynamic)

        try:
            why = difference(eager, run(program, compiled))
        except InvalidBackend:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        graphs += counters["stats"]["graphs"]
        rows.append((program.name, why, sum(counters["not_compiled"].values())))
    dynamo.reset()
    if not graphs:
        return [(name, NO_GRAPH, count) for name, _, count in rows]
    return rows


def loaded(name: str) -> str | Callable[..., Any]:
    """The backend of that name, or what "module:attribute" stands for."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return name
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def main(names: Sequence[str]) -> int:
    """The command; see the top of the file."""
    if not names or names[0].startswith("-"):
        print(__doc__.partition("\n\n")[0] if __doc__ else "")
        return 2
    failed = 0
    for name in names:
        try:
            rows = check(loaded(name))
        except InvalidBackend as error:
            print(error)
            return 2
        wide = max(len(row[0]) for row in rows)
        print(f"{name}: {'program':{wide}}  state")
        for program, why, count in rows:
            state = f"DIFFERS: {why}" if why else "as eager"
            left = f" ({count} part{'s' * (count != 1)} as captured)" if count else ""
            print(f"{'':{len(name) + 1}} {program:{wide}}  {state}{left}")
        failed += sum(bool(row[1]) for row in rows)
    print(f"{failed} of {len(names) * len(PROGRAMS)} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
