"""The state of the CPU's random number generator: set, read and put back by nodes of the graph.

They stand between the nodes that draw, in the program's order, and every backend runs them as they
are. Generators of other devices, and what reads a seed into Python, break the graph.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.random

from dynamo.base.errors import Break
from dynamo.graph_operators.cuts import runs_alone
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import foldable, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.tensor import TensorVar

# Without wrappers that import torch's own compiler: it puts them on when it is used first.
SEED: Any = inspect.unwrap(torch.manual_seed)
READ: Any = inspect.unwrap(torch.get_rng_state)
WRITE: Any = inspect.unwrap(torch.set_rng_state)


@runs_alone
def write_seed(number: int) -> None:
    """In a graph: `torch.manual_seed`."""
    SEED(number)


@runs_alone
def read_state() -> torch.Tensor:
    """In a graph: `torch.get_rng_state`."""
    return READ()  # type: ignore[no-any-return]


@runs_alone
def write_state(state: torch.Tensor) -> None:
    """In a graph: `torch.set_rng_state`."""
    WRITE(state)


def check_plain(function: Any) -> None:
    if torch_functions.in_transform():
        raise Break("random_state", f"{function.__name__} in a transform")


@rule([*{torch.manual_seed, SEED}])
def manual_seed(tx: Frame, seed: Var) -> Var:
    check_plain(torch.manual_seed)
    if seed.python_type() is not int:
        raise Break("random_state", f"manual_seed of {seed!r}")
    tx.trace.graph.operation("call_function", write_seed, (seed.as_proxy(),), {}, None)
    tx.trace.effects.tick()
    return tx.trace.wrap(torch.default_generator, None)


@rule([*{torch.get_rng_state, READ}])
def get_rng_state(tx: Frame) -> Var:
    check_plain(torch.get_rng_state)
    fake = torch_functions.run_on_fakes(tx, torch.empty, [list(READ().shape)],
                                        {"dtype": torch.uint8, "device": "cpu"})  # fmt: skip
    node = tx.trace.graph.operation("call_function", read_state, (), {}, fake)
    return TensorVar(node, fake)


@rule([*{torch.set_rng_state, WRITE}])
def set_rng_state(tx: Frame, new_state: Var) -> Var:
    check_plain(torch.set_rng_state)
    if not isinstance(new_state, TensorVar) or new_state.fake.dtype != torch.uint8:
        raise Break("random_state", f"set_rng_state of {new_state!r}")
    tx.trace.graph.operation("call_function", write_state, (new_state.node,), {}, None)
    tx.trace.effects.tick()
    return ConstVar(None)


# What `fork_rng` asks.
foldable([torch.accelerator.current_accelerator, torch.get_device_module, torch.cuda.device_count])
