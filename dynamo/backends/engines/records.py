"""What an engine is to us: which operators it may get, and how it is made of a part of a graph."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from dynamo.base.errors import InvalidBackend

Built = Callable[[list[Tensor]], list[Tensor]]
VIEWS = ("view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "slice",
         "select", "alias", "detach", "clone", "as_strided", "unbind", "split", "_unsafe_view")
MAKES = ("full", "empty", "zeros", "ones", "arange", "scalar_tensor", "full_like", "zeros_like")


@dataclass(frozen=True, slots=True)
class Engine:
    """build: an engine of a part, with examples of its inputs; devices: their types. Instead of
    build, convert and load: the part as bytes, which are cached on disk, and an engine of these
    bytes where some inputs, by position, are constants.

    dtypes: of all values that it may meet. packages: what it needs, as names of imports; install:
    what gives them. refuses: why an operator is left to PyTorch, or "". bakes: weights of inference
    are constants of its parts. exports: by way of `torch.export`.
    """

    name: str
    build: Callable[[fx.GraphModule, list[Tensor]], Built] | None
    packages: tuple[str, ...]
    install: str
    devices: tuple[str, ...]
    dtypes: Collection[torch.dtype]
    refuses: Callable[[fx.Node], str] = lambda node: ""
    bakes: bool = True
    exports: bool = True
    convert: Callable[[fx.GraphModule, list[Tensor]], bytes] | None = None
    load: Callable[[bytes, Mapping[int, Tensor]], Built] | None = None

    def check_options(self, mode: str | None, options: Mapping[str, Any] | None) -> None:
        """Errors: InvalidBackend names what is to be installed; ValueError for any option."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise InvalidBackend(
                f"the backend {self.name!r} needs {' and '.join(missing)}: pip install "
                f"{self.install}")
        if options or mode not in (None, "default"):
            raise ValueError(f"the backend {self.name!r} takes no mode= and no options=")
        if self.exports:
            settle_export()


@functools.cache
def settle_export() -> None:
    """The first export of a process changes settings of torch, which compiled code depends on: so
    it comes before anything is compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.export(torch.nn.Identity(), (torch.zeros(1),), strict=False)
