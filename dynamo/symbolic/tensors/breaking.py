"""Calls that always break the graph, with a reason that tells what to do."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
import torch.random
from torch.nn.utils import rnn

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var

CALLS: dict[str, list[Any]] = {
    "random_state": [
        torch.seed, torch.initial_seed,
    ],
    # Not inside of them, with the lengths in the hand.
    "dynamic_output_shape": [rnn.pack_padded_sequence, rnn.pad_packed_sequence],
}  # fmt: skip


def _register(code: str, function: Any) -> None:
    @rule(function)
    def breaks(tx: Frame, /, *args: Var, **kwargs: Var) -> NoReturn:
        raise Break(code, function.__qualname__)


for _code, _functions in CALLS.items():
    for _function in _functions:
        _register(_code, _function)
