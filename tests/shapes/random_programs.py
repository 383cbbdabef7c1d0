"""Random programs over sizes and numbers that change from call to call.

`python -m tests.shapes.random_programs --count 2000` compares them with eager and prints differences.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynamo
from tests.shapes.test_numbers import assert_same

NUMBERS = (
    "x.shape[0]", "x.shape[1]", "y.size(0)", "len(x)", "n", "m", "n + m", "n - 2 * m", "-n", "abs(m - n)",
    "x.shape[0] * n", "x.numel() // 2", "x.shape[0] % 3", "n % (m + 1)", "n // 2", "max(n, x.shape[0])",
    "min(x.shape[0], y.shape[0])", "x.shape[0] + y.shape[0]", "int(r > 0.5)", "n ** 2", "x.dim()", "3", "k",
)
FLOATS = ("r", "r * 2", "r + n", "n / 4", "x.shape[0] / 2", "-r", "float(n)", "r / (n + 1)", "0.5", "k * r")
TENSORS = (
    "{t} * {n}", "{t} + {f}", "{t}.add({t}, alpha={n})", "{t}.sum(0, keepdim=True) + {t}", "{t} @ {t}.t() @ {t}",
    "{t}[: {t}.shape[0] // 2 + 1]", "{t}[1:]", "{t}[:{n}]", "torch.cat([{t}, {t}])", "{t}.view(-1, {t}.shape[1])",
    "{t}.reshape({t}.shape[1], -1)", "{t}.t()", "{t}.t().contiguous()", "torch.relu({t}).clone().mul_({f})",
    "{t}.new_full(({t}.shape[0], 2), {f})", "torch.zeros(abs({n}) % 50, 3) + {n}", "{t}.softmax(0)",
    "torch.arange({t}.shape[0])[:, None] * {t}", "{t}.repeat(2, 1)", "{t}.flip(0)", "{t}.expand_as({t})",
    "{t}[None].squeeze(0)", "{t}.roll({n}, 0)", "{t}.clamp(-1.0, {f})", "torch.where({t} > {f}, {t}, {n})",
    "{t}.narrow(0, 0, min({t}.shape[0], 2))", "{t} + x.mean()", "{t} - y.shape[0]", "{t}.unbind(0)[0][None]",
    "{t}.chunk(2, 0)[0]", "{t}.split(2, 0)[-1]", "{t}.tril({n})", "F.pad({t}, (0, 1, 1, 0))", "{t}.cumsum(0)",
)
CONDITIONS = (
    "{n} > {m}", "{t}.shape[0] == {n}", "{n} % 2 == 0", "{t}.shape[0] < 6", "{f} > 0.7", "{n} == 3",
    "{t}.shape[0] != y.shape[0]", "{t}.is_contiguous()", "{n}", "not {n} >= {t}.numel()", "{t}.shape == x.shape",
)


class Maker:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tensors = ["x", "y"]
        self.lines: list[str] = []

    def fill(self, template: str) -> str:
        pick = self.random.choice
        return template.format(
            t=pick(self.tensors), n=f"({pick(NUMBERS)})", m=f"({pick(NUMBERS)})", f=f"({pick(FLOATS)})")

    def statement(self, depth: int, number: int) -> None:
        indent, kind = "    " * depth, self.random.random()
        if kind < 0.2 and depth < 3:
            self.lines.append(f"{indent}if {self.fill(self.random.choice(CONDITIONS))}:")
            name = f"t{number}"
            self.lines.append(f"{indent}    {name} = {self.fill(self.random.choice(TENSORS))}")
            self.lines.append(f"{indent}else:")
            self.lines.append(f"{indent}    {name} = {self.fill(self.random.choice(TENSORS))}")
            self.tensors.append(name)
        elif kind < 0.3:
            self.lines.append(f"{indent}k = {self.fill('{n} + k')}")
        elif kind < 0.38:
            self.lines.append(f"{indent}extra.append({self.random.choice(NUMBERS + FLOATS)})")
        elif kind < 0.43:
            self.lines.append(f"{indent}dynamo.graph_break()")
        else:
            name = f"t{number}"
            self.lines.append(f"{indent}{name} = {self.fill(self.random.choice(TENSORS))}")
            self.tensors.append(name)

    def source(self) -> str:
        for number in range(self.random.randint(2, 7)):
            self.statement(1, number)
        results = ", ".join(self.tensors[-3:])
        body = "\n".join(self.lines)
        return (
            f"def program(x, y, n, m, r):\n    k, extra = 1, []\n{body}\n"
            f"    return {results}, k, extra, {self.tensors[-1]}.shape"
        )


def inputs_of(chooser: random.Random) -> tuple[Any, ...]:
    """Arguments of one call; some calls look alike but for one of them."""
    rows = chooser.choice((2, 3, 4, 5, 6, 7, 8, 1, 4, 5, 0))
    columns = chooser.choice((4, 4, 4, 3, 6))
    x = torch.randn(rows, columns, dtype=torch.float64)
    if chooser.random() < 0.2:
        x = torch.randn(columns, rows, dtype=torch.float64).t()
    if chooser.random() < 0.1:
        x = torch.randn(rows, 2 * columns, dtype=torch.float64)[:, columns:]
    y = torch.randn(chooser.choice((rows, 3, 5)), columns, dtype=torch.float64)
    return x, y, chooser.choice((0, 1, 2, 3, 4, 7, -1)), chooser.choice((1, 2, 5)), chooser.random()


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Results, or the kind of exception."""
    try:
        return function(*arguments)
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError, TypeError) as error:
        if isinstance(error, dynamo.exc.DynamoError):
            raise
        return type(error).__name__


def check(seed: int, dynamic: bool | None, calls: int = 10) -> str | None:
    """The program and what differs; None where nothing does."""
    source = Maker(seed).source()
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "dynamo": dynamo}
    exec(compile(source, f"<program {seed}>", "exec"), scope)
    program, chooser = scope["program"], random.Random(seed)
    compiled = dynamo.compile(program, backend="eager", dynamic=dynamic)
    for call in range(calls):
        arguments = inputs_of(chooser)
        found, wanted = outcome(compiled, arguments), outcome(program, arguments)
        try:
            assert_same(found, wanted)
        except AssertionError as error:
            shown = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments]
            return f"{source}\ncall {call} of {shown}, dynamic={dynamic}: {str(error)[:500]}\n{found}\n{wanted}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = 0
    with dynamo.config.patch(suppress_errors=False):
        for seed in range(options.seed, options.seed + options.count):
            for dynamic in (None, True):
                try:
                    difference = check(seed, dynamic)
                except Exception as error:
                    difference = f"{Maker(seed).source()}\ndynamic={dynamic}: {error!r}"[:3000]
                if difference is not None:
                    found += 1
                    print(f"=== seed {seed}\n{difference}\n", flush=True)
            dynamo.reset()
    print(f"{options.count} programs, {found} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
