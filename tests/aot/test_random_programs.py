"""Random tensor programs with views and in-place operations, captured and compared with eager.

    python -m tests.aot.test_random_programs 0 5000     # seeds to try
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dynamo import aot
from tests.aot.compare import layout, sharing
from tests.aot.programs import traced
from tests.seeds import some

Step = tuple[Callable[..., Any], tuple[int, ...]]

UNARY: list[Callable[..., Any]] = [
    torch.sin, torch.relu, torch.neg, lambda x: x * 2, lambda x: x + 1, torch.clone,
    lambda x: x.contiguous(), lambda x: x.detach(), lambda x: F.dropout(x, 0.5),
    lambda x: x.sum(0), lambda x: x.mean(-1, keepdim=True), lambda x: torch.zeros_like(x),
    lambda x: F.softmax(x, 0), lambda x: x.double(), lambda x: x.float(),
]  # fmt: skip
VIEWS: list[Callable[..., Any]] = [
    lambda x: x.t(), lambda x: x[0], lambda x: x[1:], lambda x: x[..., ::2], lambda x: x.view(-1),
    lambda x: x.reshape(-1), lambda x: x.unsqueeze(0), lambda x: x.squeeze(), lambda x: x.view_as(x),
    lambda x: x.unsqueeze(0).expand_as(torch.stack([x, x])), lambda x: x.diagonal(), lambda x: x.flatten(),
    lambda x: x.transpose(0, -1), lambda x: x.unfold(0, 2, 1), lambda x: x.narrow(-1, 0, 1),
    lambda x: x.chunk(2)[1], lambda x: x.unbind(0)[0],
]  # fmt: skip
IN_PLACE: list[Callable[..., Any]] = [
    lambda x: x.add_(1), lambda x: x.mul_(2), lambda x: x.relu_(), lambda x: x.zero_(),
    lambda x: x.fill_(0.5), lambda x: x[0].add_(1), lambda x: x.t().mul_(3),
    lambda x: x.sin_(), lambda x: x.bernoulli_(0.5), lambda x: x.view(-1)[1:].neg_(),
]  # fmt: skip
BINARY: list[Callable[..., Any]] = [
    torch.add, torch.mul, torch.maximum, lambda x, y: x.add_(y), lambda x, y: x.copy_(y),
    lambda x, y: x.mul_(y), lambda x, y: torch.cat([x, y]), lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: x @ y, lambda x, y: x[0].copy_(y[0]), lambda x, y: torch.sub(x, y, alpha=2),
    lambda x, y: torch.stack([x, y]), lambda x, y: y.expand_as(x), lambda x, y: x[0].sub_(y),
]  # fmt: skip


def generate(rng: random.Random, inputs: list[torch.Tensor], grad: bool) -> tuple[list[Step], list[int]]:
    """Steps that run on these inputs, and which values are returned."""
    steps: list[Step] = []
    values = list(inputs)
    for _ in range(rng.randint(1, 9)):
        family = rng.choice([UNARY, UNARY, VIEWS, VIEWS, VIEWS, IN_PLACE, BINARY, BINARY])
        function = rng.choice(family)
        arguments = tuple(rng.randrange(len(values)) for _ in range(2 if family is BINARY else 1))
        try:
            with torch.no_grad() if not grad else torch.enable_grad():
                result = function(*[values[at] for at in arguments])
        except (RuntimeError, IndexError):
            continue
        if result.numel() > 64:
            continue
        values.append(result)
        steps.append((function, arguments))
    returned = [rng.randrange(len(values)) for _ in range(rng.randint(1, 4))]
    return steps, returned


def execute(steps: list[Step], returned: list[int], inputs: list[Any]) -> Any:
    values = list(inputs)
    for function, arguments in steps:
        values.append(function(*[values[at] for at in arguments]))
    return tuple(values[at] for at in returned)


def make_inputs(seed: int, grad: bool, leaves: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Inputs of several layouts; the leaves that they come from are added to `leaves`."""
    rng = random.Random(seed)
    torch.default_generator.manual_seed(seed)
    made = []
    base = torch.randn(64, dtype=torch.float64)
    for _ in range(3):
        kind = rng.randrange(5)
        x = torch.randn(3, 4, dtype=torch.float64)
        if kind == 1:
            x = torch.randn(4, 3, dtype=torch.float64).t()
        if kind == 2:
            x = torch.randn(3, 8, dtype=torch.float64)[:, ::2]
        if kind == 3:
            x = base[12 * len(made) :][:12].view(3, 4)
        if kind == 4:
            x = torch.randn(4, dtype=torch.float64)
        if grad and rng.random() < 0.6:
            x = x.detach().requires_grad_()
            if leaves is not None:
                leaves.append(x)
            x = x if rng.random() < 0.5 else x * 1
        made.append(x)
    return made


Result = tuple[Any, list[torch.Tensor], list[Any]]


def run(call: Callable[..., Any], seed: int, grad: bool) -> Result:
    leaves: list[torch.Tensor] = []
    return observe(call, make_inputs(seed, grad, leaves), leaves, seed, grad)


def observe(
    call: Callable[..., Any], inputs: list[torch.Tensor], leaves: list[torch.Tensor], seed: int,
    grad: bool,
) -> Result:
    """Outputs, inputs, and the gradients of the leaves that they come from (None without)."""
    torch.default_generator.manual_seed(seed + 1)
    out = call(*inputs)
    wanted = [o for o in (*out, *inputs) if o.requires_grad]
    if grad and wanted:
        torch.default_generator.manual_seed(seed + 2)
        sum((o * torch.randn(o.shape, dtype=torch.float64)).sum() for o in wanted).backward()
    return out, inputs, [x.grad for x in leaves]


def check(seed: int, grad: bool) -> str:
    """What became of a random program; raises where it differs from eager."""
    rng = random.Random(seed + 7)
    inputs = make_inputs(seed, grad)
    steps, returned = generate(rng, inputs, grad)
    examples = make_inputs(seed, grad)
    gm = traced(lambda a, b, c: execute(steps, returned, [a, b, c]))
    interpret = lambda module, fakes: module.forward
    with torch.set_grad_enabled(grad):
        try:
            if grad:
                call = aot.compile_training(gm, examples, interpret, interpret)
            else:
                call = aot.compile_inference(gm, examples, interpret, epilogue_in_graph=bool(seed % 2))
        except aot.Unsupported as reason:
            return str(reason)
        try:
            expected = run(gm.forward, seed, grad)
        except RuntimeError as error:
            if "a function that returns multiple views" in str(error):
                return "views that eager alone refuses to use"
            assert "modified by an inplace operation" in str(error)
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                run(call, seed, grad)
            return "error"
        actual = run(call, seed, grad)
    assert_same(actual, expected)
    return "same"


def flat(result: tuple[Any, list[Any], list[Any]]) -> list[Any]:
    return [*result[0], *result[1], *result[2]]


def assert_same(actual: Result, expected: Result) -> None:
    """The values, how they lie in memory, and what shares a storage."""
    for got, want in zip(flat(actual), flat(expected), strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            assert layout(got) == layout(want)
            torch.testing.assert_close(got, want, equal_nan=True)
    wanted, found = sharing([*expected[0], *expected[1]]), sharing([*actual[0], *actual[1]])
    assert wanted[:2] == found[:2]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("start", some(range(0, 120, 20), 2))
def test_random_programs(start: int, grad: bool) -> None:
    outcomes = [check(seed, grad) for seed in range(start, start + 20)]
    assert outcomes.count("same") >= 8


def try_seeds(first: int, count: int, check: Callable[[int, bool], list[str]]) -> None:
    """Tries seeds and prints what fails, then how often each outcome came."""
    outcomes: dict[str, int] = {}
    for seed in range(first, first + count):
        for grad in (False, True):
            try:
                found = check(seed, grad)
            except BaseException as error:  # noqa: BLE001
                found = [f"FAILED {type(error).__name__}"]
                print(f"seed {seed} grad {grad}: {type(error).__name__} {str(error)[:200]}")
            for outcome in found:
                outcomes[outcome[:90]] = outcomes.get(outcome[:90], 0) + 1
    for outcome, times in sorted(outcomes.items(), key=lambda item: -item[1]):
        print(times, outcome)


if __name__ == "__main__":
    try_seeds(int(sys.argv[1]), int(sys.argv[2]), lambda seed, grad: [check(seed, grad)])
