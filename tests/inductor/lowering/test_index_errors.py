"""An index out of range raises what eager raises, in generated kernels too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynamo

ONES = torch.ones(3, 4)
PROGRAMS = {
    "gather": lambda x, i: x.gather(0, i[:, None]) + 1,
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(3, 4), ONES) + 1,
    "index_add": lambda x, i: x.index_add(0, i, ONES) + 1,
    "index_select": lambda x, i: x.index_select(0, i) + 1,
    "embedding": lambda x, i: F.embedding(i, x) + 1,
    "index": lambda x, i: x[i] + 1,
    "nll_loss": lambda x, i: F.nll_loss(x[:3], i) + 1,
    "two": lambda x, i: (x.gather(0, i[:, None]) + x[i.clamp(0, 4)], x.index_select(0, i.clamp(0, 4))),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_class_is_eagers(program: str) -> None:
    function = PROGRAMS[program]
    compiled = dynamo.compile(function)
    x = torch.randn(5, 4)
    for index in ([0, 1, 3], [0, 1, 5], [-6, 0, 1], [1, 2, 0]):
        places = torch.tensor(index)
        try:
            want = function(x, places)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)) as raised:
                compiled(x, places)
            assert type(raised.value) is type(error)
        else:
            torch.testing.assert_close(compiled(x, places), want)


def test_two_errors_in_one_kernel_are_told_apart() -> None:
    def function(x, i, j):
        return x.gather(0, i) + x.flatten()[j]

    compiled = dynamo.compile(function)
    x, good, bad = torch.randn(6, 2), torch.zeros(4, 2, dtype=torch.long), torch.full((4, 2), 40)
    torch.testing.assert_close(compiled(x, good, good), function(x, good, good))
    with pytest.raises(RuntimeError):
        compiled(x, bad, good)
    with pytest.raises(IndexError):
        compiled(x, good, bad)


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_a_source_of_another_size_is_an_error(copied: bool, dynamic: bool | None) -> None:
    def function(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        made = x.slice_scatter(source, 0, 2, 4)
        return made + 1 if copied else made

    compiled = dynamo.compile(function, dynamic=dynamic)
    for rows, given in ((6, 2), (3, 2), (5, 1), (3, 1), (4, 3), (2, 1), (7, 2)):
        x, source = torch.rand(rows, 3), torch.rand(given, 3)
        if given == min(max(rows - 2, 0), 2):
            assert torch.equal(compiled(x, source), function(x, source))
        else:
            with pytest.raises(RuntimeError):
                compiled(x, source)
