"""The inverse of a short-time Fourier transform on fakes: its kernel looks at the values of the
window, and raises where they don't overlap. The graph holds the call, which a backend runs as it
is (`dynamo/graph_operators/cuts.py`): so it raises what eager raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dynamo.shapes.fake_tensor import DataDependent


def _istft(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The kernel says what is wrong with the arguments; torch's Python version, what comes out."""
    try:
        return torch.istft(*args, **kwargs)
    except DataDependent:
        from torch import _refs  # a second of imports

        return _refs.istft(*args, **kwargs)


SPECTRA: Mapping[Any, Callable[..., Any]] = {torch.istft: _istft, torch.Tensor.istft: _istft}
