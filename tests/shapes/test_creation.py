"""`torch.tensor` of sizes and numbers that change: one graph for all, eager's values and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from tests.shapes.test_numbers import assert_same


def written(x: torch.Tensor) -> Any:
    made = torch.tensor([x.shape[0], 0])
    made[1] = 5
    made += 1
    return made, x[0] * made[0]


PROGRAMS: dict[str, Any] = {
    "scalar": lambda x: x / torch.tensor(x.shape[0]),
    "nested": lambda x: torch.tensor([[x.shape[0], 2], [3, x.shape[0] * 2]]) * 2,
    "shape": lambda x: torch.tensor(x.shape) + torch.as_tensor(list(x.shape)),
    "float beside it": lambda x: torch.tensor([x.shape[0], 0.5], requires_grad=True),
    "doubles": lambda x: torch.tensor((x.shape[0], 1), dtype=torch.float64) * 2,
    "like another": lambda x: x.new_tensor(x.shape[0]) * x,
    "index": lambda x: x[torch.tensor([x.shape[0] - 1, 0])],
    "written": written,
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    program, before = PROGRAMS[name], dynamo.counters["stats"]["graphs"]
    compiled = dynamo.compile(program, backend=backend)
    for rows in (7, 12, 4, 33, 5):
        x = torch.randn(rows, 3)
        found, wanted = compiled(x), program(x)
        assert_same(found, wanted)
        if isinstance(wanted, torch.Tensor):
            assert (found.dtype, found.requires_grad) == (wanted.dtype, wanted.requires_grad)
    assert dynamo.counters["stats"]["graphs"] - before <= 2


@pytest.mark.parametrize("program", [
    lambda n: torch.tensor([n], dtype=torch.uint8), lambda n: torch.tensor(n, dtype=torch.float16),
    lambda n: torch.tensor([n, True]), lambda n: torch.tensor(n).item() + 1, lambda n: torch.tensor([n / 2, n]),
])  # fmt: skip
def test_what_torch_has_to_see(program: Any) -> None:
    """Narrow dtypes, values that are read: the result, or the error, is eager's."""
    compiled = dynamo.compile(program, backend="eager")
    for number in (3, 8, 300, -1, 70000, 2**40):
        try:
            wanted = program(number)
        except (RuntimeError, OverflowError) as error:
            with pytest.raises(type(error)):
                compiled(number)
            continue
        assert_same(compiled(number), wanted)
