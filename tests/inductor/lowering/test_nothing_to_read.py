"""Indices into an axis without elements raise what eager raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import dynamo

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, Program] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, x.shape[1])),
    "index": lambda x, i: x[i] + 1,
    "index_put": lambda x, i: x.index_put((i,), torch.ones(i.shape[0], x.shape[1]), accumulate=True),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(i.shape[0], x.shape[1])),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None].expand(-1, x.shape[1]), torch.ones(i.shape[0], x.shape[1])),
    "index_fill": lambda x, i: x.index_fill(0, i, 2),
    "index_fill of no columns": lambda x, i: x[:, 4:].index_fill(0, i + 5, 2),
    "interpolate": lambda x, i: F.interpolate(x[None], scale_factor=i.shape[0]),
}


def outcome(function: Program, rows: int, indices: int) -> object:
    try:
        return tuple(function(torch.ones(rows, 4), torch.zeros(indices, dtype=torch.long)).shape)
    except (IndexError, RuntimeError) as error:
        return type(error)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_of_no_rows(name: str, dynamic: bool) -> None:
    compiled = dynamo.compile(PROGRAMS[name], dynamic=dynamic)
    with dynamo.config.patch(suppress_errors=False):
        for rows, indices in ((3, 2), (0, 1), (0, 2), (3, 1)):
            assert outcome(compiled, rows, indices) == outcome(PROGRAMS[name], rows, indices)
