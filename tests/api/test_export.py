"""`export`: one whole graph, called like the function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamo

SCALE = torch.full((3,), 2.0)
SEEN: list[int] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.steps = 0

    def forward(self, x: torch.Tensor, *, count: bool = False) -> Any:
        if count:
            self.steps += 1
        return {"out": self.linear(x) + self.shift, "weight": self.linear.weight}


def arguments(a: list[torch.Tensor], b: dict[str, torch.Tensor], *, k: float = 1.0) -> Any:
    return (a[0] * k + b["q"], [a[1], k, None]), SCALE * 2


def in_place(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("aten", [False, True])
def test_module(aten: bool) -> None:
    net = Net()
    module, guards = dynamo.export(net, torch.rand(2, 3), aten_graph=aten)
    x = torch.rand(2, 3)
    want, got = net(x), module(x)
    assert torch.equal(want["out"], got["out"]) and got["weight"] is net.linear.weight
    assert dict(module.named_parameters()).keys() == {"linear.weight", "linear.bias"}
    assert "shift" in dict(module.named_buffers()) and any(guard.kind == "TENSOR" for guard in guards)
    nn.init.zeros_(net.linear.weight)
    assert torch.equal(net(x)["out"], module(x)["out"])
    targets = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    assert all(target.startswith("aten.") for target in targets) is aten and targets


@pytest.mark.parametrize("aten", [False, True])
def test_nested_arguments(aten: bool) -> None:
    module, _ = dynamo.export(
        arguments, [torch.rand(3), torch.rand(3)], {"q": torch.rand(3)}, k=2.0, aten_graph=aten)
    a, b = [torch.rand(3), torch.rand(3)], {"q": torch.rand(3)}
    want, got = arguments(a, b, k=2.0), module(a, b, k=2.0)
    assert torch.equal(want[0][0], got[0][0]) and torch.equal(want[1], got[1])
    assert got[0][1][0] is a[1] and got[0][1][1:] == [2.0, None]


@pytest.mark.parametrize("aten", [False, True])
def test_mutated_arguments(aten: bool) -> None:
    module, _ = dynamo.export(in_place, torch.rand(3), aten_graph=aten)
    x = torch.rand(3)
    y = x.clone()
    assert torch.equal(module(x), in_place(y)) and torch.equal(x, y)


def test_branches_follow_constants() -> None:
    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return x + 1 if flag else x - 1

    module, guards = dynamo.export(f, torch.zeros(1), True)
    assert module(torch.zeros(1), True).item() == 1
    assert any("flag" in str(guard) for guard in guards)


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y * 2 if y.sum().item() > 3 else y  # here


def test_breaks_are_errors_with_the_line() -> None:
    with pytest.raises(dynamo.exc.Unsupported, match=r"(?s)test_export.*y.sum\(\).item\(\) > 3.*# here"):
        dynamo.export(breaks, torch.rand(3))


def reads(x: torch.Tensor) -> dict[str, Any]:
    y = x[x > 0]
    return {"scaled": x * y.sum().item(), "positive": y, "count": x.long().sum().item()}


def test_what_the_data_decides_is_part_of_the_graph() -> None:
    module, _ = dynamo.export(reads, torch.tensor([1.0, -2.0, 3.0]))
    for x in (torch.tensor([1.0, -2.0, 3.0]), torch.tensor([5.0, 6.0, 2.0])):
        found, wanted = module(x), reads(x)
        assert all(torch.equal(found[key], wanted[key]) for key in ("scaled", "positive"))
        assert found["count"] == wanted["count"]


def test_what_a_graph_cannot_hold() -> None:
    with pytest.raises(dynamo.exc.Unsupported, match="steps"):
        dynamo.export(Net(), torch.rand(2, 3), count=True)

    def remembers(x: torch.Tensor) -> torch.Tensor:
        SEEN.append(1)
        return x + 1

    with pytest.raises(dynamo.exc.Unsupported, match="SEEN"):
        dynamo.export(remembers, torch.rand(3))
    with pytest.raises(dynamo.exc.Unsupported, match="return"):
        dynamo.export(lambda x: (x + 1, SEEN.append), torch.rand(3))
    with pytest.raises(dynamo.exc.Unsupported, match="as it is"):
        dynamo.export(dynamo.list_backends)


def test_a_function_of_torchs_own() -> None:
    module, _ = dynamo.export(torch.nn.functional.relu, torch.rand(3))
    x = torch.randn(3)
    assert torch.equal(module(x), x.relu())


def test_functions_without_operations() -> None:
    module, _ = dynamo.export(lambda x, y: (y, x, 3), torch.zeros(1), torch.ones(1))
    assert [module(torch.zeros(1), torch.ones(1))[i].item() for i in (0, 1)] == [1, 0]


def test_numbers_that_the_graph_computes() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> Any:
        n = t.item()
        return {"head": x[:n], "n": n, "next": n + 1, "mean": x.mean().item()}

    with dynamo.config.patch(capture_scalar_outputs=True):
        module, _ = dynamo.export(function, torch.randn(5), torch.tensor(3))
    x = torch.randn(5)
    found, wanted = module(x, torch.tensor(2)), function(x, torch.tensor(2))
    assert torch.equal(found.pop("head"), wanted.pop("head"))
    assert found == wanted


def asserts(x: torch.Tensor) -> torch.Tensor:
    if not x.sum() > 0:  # pytest rewrites an assert
        raise AssertionError("the sum")
    torch._assert(x.max() < 9, "the largest")
    if x.min() < -1:
        raise ValueError("the smallest")
    assert x.mean() < 5, f"no constant: {x.shape}"
    return x + 1


def test_assertions_on_values() -> None:
    """A branch that raises is an assertion of the exported graph, with the program's message."""
    x = torch.rand(3)
    module, _ = dynamo.export(asserts, x)
    assert torch.equal(module(x), x + 1)
    wrong = {"the sum": -x, "the largest": x + 9, "the smallest": torch.tensor([-2.0, 3.0, 1.0]),
             "raises an error for such values": torch.full((3,), 5.5)}
    for message, values in wrong.items():
        with pytest.raises(RuntimeError, match=message):
            module(values)
