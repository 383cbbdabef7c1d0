"""Orders of numpy as operators of a graph: its own sorts, which put equal elements in other places
than torch's do.

`dynamo_jit::array_argsort(tensor, axis, kind)` is `numpy.argsort` of a tensor on the CPU and
`dynamo_jit::array_argpartition(tensor, place, axis)` is `numpy.argpartition`.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")
LIBRARY.define("array_argsort(Tensor tensor, int axis, str? kind) -> Tensor")
LIBRARY.define("array_argpartition(Tensor tensor, int place, int axis) -> Tensor")


def _argsort(tensor: torch.Tensor, axis: int, kind: str | None) -> torch.Tensor:
    order = tensor.detach().numpy().argsort(axis, kind)  # type: ignore[arg-type]
    return torch.from_numpy(order).contiguous()


def _argpartition(tensor: torch.Tensor, place: int, axis: int) -> torch.Tensor:
    return torch.from_numpy(tensor.detach().numpy().argpartition(place, axis)).contiguous()


def _order(tensor: torch.Tensor, *options: object) -> torch.Tensor:
    return tensor.new_empty(tensor.shape, dtype=torch.int64)


for _name, _function in (("argsort", _argsort), ("argpartition", _argpartition)):
    LIBRARY.impl(f"array_{_name}", _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dynamo_jit::array_{_name}", _order, lib=LIBRARY)

argsort = torch.ops.dynamo_jit.array_argsort.default
argpartition = torch.ops.dynamo_jit.array_argpartition.default
