"""`channel_shuffle` copies on the CPU, where its decomposition gives a view for one group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "torch": torch.channel_shuffle,
    "native": torch.native_channel_shuffle,
    "aten": torch.ops.aten.native_channel_shuffle,
}
SHAPES = [(2, 4, 3, 3), (1, 4, 1, 1), (2, 4, 3), (4, 4), (0, 4, 2, 2)]


def outcome(program: Callable[..., Any], shape: tuple[int, ...], moved: bool) -> Any:
    x = torch.arange(float(torch.Size(shape).numel())).view(shape)
    if moved:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    try:
        y, z = program(x)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error).splitlines()[0]
    return y.tolist(), z.tolist(), x.tolist(), y.stride(), z.stride(), y._is_view(), x._version


@pytest.mark.parametrize(("name", "backend", "dynamic"), [
    ("torch", "eager", False), ("torch", "aot_eager", False), ("torch", "inductor", False),
    ("torch", "inductor", True), ("native", "inductor", False), ("aten", "inductor", True),
])  # fmt: skip
def test_what_is_written_into_the_result_is_not_in_the_argument(
    name: str, backend: str, dynamic: bool
) -> None:
    function = FUNCTIONS[name]
    differs = []
    for groups in (1, 2, 3) if backend == "eager" else (2,):
        def program(x: torch.Tensor, groups: int = groups) -> Any:
            y = function(x, groups)
            y.add_(1)
            return y, function(x * 2, groups)

        compiled = dynamo.compile(program, backend=backend, dynamic=dynamic)
        for shape in SHAPES:
            for moved in (False, True):
                wanted, found = outcome(program, shape, moved), outcome(compiled, shape, moved)
                if wanted != found:
                    differs.append((groups, shape, moved, wanted, found))
    assert not differs
