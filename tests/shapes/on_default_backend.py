"""The operators of changing sizes on the default backend, several of them in one compiled program.

`python -m tests.shapes.on_default_backend --group 6` compares all of them with eager, for static
sizes, automatic and dynamic ones, and prints the differences. Operators of one program raise
for the same sizes, so that an error hides no other operator's results.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import dynamo
from tests.common import default_dtype
from tests.shapes.more_operators import MORE
from tests.shapes.operators import OPERATORS

Operator = Callable[[torch.Tensor], Any]
Size = tuple[int, int]
ALL: dict[str, Operator] = {**OPERATORS, **MORE}
ERRORS = (RuntimeError, IndexError, ValueError)
TOLERANCES = {
    torch.float64: (1e-9, 1e-9), torch.complex128: (1e-9, 1e-9), torch.float16: (2e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}  # fmt: skip
# Whose backward in eager ends the process for no rows (a division by zero).
NO_GRADIENTS = frozenset(("pdist",))
DIFFERENTIABLE = [name for name in ALL if name not in NO_GRADIENTS]


@contextlib.contextmanager
def world(dtype: torch.dtype) -> Iterator[None]:
    """Tensors that operators make for themselves have this dtype."""
    with default_dtype(dtype), warnings.catch_warnings(), dynamo.config.patch(suppress_errors=False):
        warnings.simplefilter("ignore")
        yield


def program_of(operators: Sequence[Operator]) -> Callable[[torch.Tensor], list[Any]]:
    """One program that calls each with the same tensor."""
    calls = ", ".join(f"f{number}(x)" for number in range(len(operators)))
    scope: dict[str, Any] = {f"f{number}": f for number, f in enumerate(operators)}
    exec(f"def program(x):\n    return [{calls}]\n", scope)
    program: Callable[[torch.Tensor], list[Any]] = scope["program"]
    return program


def outcome(function: Operator, x: torch.Tensor) -> Any:
    """The results, or the type of the error."""
    try:
        return function(x)
    except ERRORS as error:
        if isinstance(error, dynamo.exc.DynamoError):
            raise
        return type(error)


def groups_of(names: Sequence[str], sizes: Sequence[Size], most: int) -> list[list[str]]:
    """The operators in groups that raise for the same of these sizes."""
    same: dict[tuple[Any, ...], list[str]] = {}
    for name in names:
        with torch.device("cpu"):
            raised = [outcome(ALL[name], torch.randn(size)) for size in sizes]
        key = tuple([found if isinstance(found, type) else None for found in raised])
        same.setdefault(key, []).append(name)
    return [group[at : at + most] for group in same.values() for at in range(0, len(group), most)]


def difference(found: Any, wanted: Any) -> str | None:
    """How the results of a compiled program differ from eager's; strides where eager's are
    contiguous."""
    if type(found) is not type(wanted):
        return f"{found!r:.200} in place of {wanted!r:.200}"
    if isinstance(wanted, torch.Tensor):
        return _difference_of_tensors(found, wanted)
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return f"{len(found)} results in place of {len(wanted)}"
        told = [difference(one, two) for one, two in zip(found, wanted, strict=True)]
        return next((f"[{at}]: {text}" for at, text in enumerate(told) if text), None)
    return None if repr(found) == repr(wanted) else f"{found!r} in place of {wanted!r}"


def _difference_of_tensors(found: torch.Tensor, wanted: torch.Tensor) -> str | None:
    if wanted.is_contiguous() and not found.is_contiguous():
        return f"strides {found.stride()} in place of {wanted.stride()}"
    rtol, atol = TOLERANCES.get(wanted.dtype, (2e-5, 2e-5))
    try:
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return f"{str(error)}\nfound {found!r:.300}\nwanted {wanted!r:.300}"
    return None


def gradients(function: Operator, x: torch.Tensor) -> Any:
    """The gradient of the sum of all results that have one."""
    x = x.clone().requires_grad_()
    leaves = [t for t in torch.utils._pytree.tree_leaves(function(x)) if isinstance(t, torch.Tensor)]
    total = [t.sin().sum() for t in leaves if t.requires_grad and t.is_floating_point()]
    return torch.autograd.grad(torch.stack(total).sum(), x)[0] if total else None


def check(
    names: Sequence[str], dynamic: bool | None, sizes: Sequence[Size], dtype: torch.dtype,
    backward: bool = False,
) -> list[str]:
    """What differs, at which size."""
    found = []
    program = program_of([ALL[name] for name in names])
    compiled = dynamo.compile(program, dynamic=dynamic)
    run = gradients if backward else (lambda function, x: function(x))
    with world(dtype):
        for size in sizes:
            if not fits(program, size):
                continue
            x = torch.randn(size)
            wanted = outcome(lambda x: run(program, x), x)
            got = outcome(lambda x: run(compiled, x), x)
            told = difference(got, wanted)
            if told:
                at = int(told[1]) if not backward and told[0] == "[" and told[1].isdigit() else 0
                found.append(f"{names[at]!r} of {list(names)} at {size} ({dynamic=}, {dtype}): {told}")
    return found


def fits(program: Operator, size: Size) -> bool:
    """Whether the default device can run it: an index out of range is the end of a GPU's process."""
    if torch.get_default_device().type == "cpu":
        return True
    with torch.device("cpu"):
        return not isinstance(outcome(program, torch.randn(size)), type)


def random_sizes(chooser: random.Random, count: int) -> list[Size]:
    """Sizes as they come in a run; 0 and 1 among them, but not first."""
    columns = chooser.choice((2, 4, 6))
    rows = [chooser.choice((2, 3, 4, 5, 7, 8, 12, 17, 40)) for _ in range(count)]
    rows[chooser.randrange(1, count)] = 0
    rows[chooser.randrange(1, count)] = 1
    return [
        (n, columns if chooser.random() < 0.7 else chooser.choice((1, 4, 6, 8))) for n in rows
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", type=int, default=6)
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="names of operators")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--modes", nargs="*", default=["None", "True", "False"])
    options = parser.parse_args()
    chooser, count = random.Random(options.seed), 0
    sizes = random_sizes(chooser, options.calls)
    print(f"sizes {sizes}", flush=True)
    for dtype in (torch.float64, torch.float32):
        with world(dtype):
            names = DIFFERENTIABLE if options.backward else list(ALL)
            groups = groups_of(options.only or names, sizes, options.group)
        for names in groups[:: 1 if dtype is torch.float64 else 3]:
            for mode in options.modes:
                dynamic = {"None": None, "True": True, "False": False}[mode]
                try:
                    told = check(names, dynamic, sizes, dtype, options.backward)
                except Exception as error:
                    told = [f"{names} ({dynamic=}, {dtype}): {error!r:.1500}"]
                for text in told:
                    count += 1
                    print(f"=== {text}\n", flush=True)
            dynamo.reset()
            print(f"done {names}", flush=True)
    print(f"{count} differences")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
