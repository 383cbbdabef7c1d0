"""Calls by keyword: functions take the names of their own parameters, and no others."""

from __future__ import annotations

import inspect
import types
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.errors import Break
from dynamo.symbolic.core import table
from dynamo.symbolic.core.constant import ConstVar

# Names that rows of the compiler's own have had.
CALLS: dict[str, Any] = {
    "manual_seed": lambda x: torch.manual_seed(number=1),
    "manual_seed by its name": lambda x: torch.manual_seed(seed=1).initial_seed(),
    "set_rng_state": lambda x: torch.set_rng_state(state=torch.get_rng_state()),
    "set_rng_state by its name": lambda x: torch.set_rng_state(new_state=torch.get_rng_state()),
    "is_tensor": lambda x: torch.is_tensor(var=x),
    "is_tensor by its name": lambda x: torch.is_tensor(obj=x),
    "backward": lambda x: torch.Tensor.backward(tensor=x.sum()),
    "register_hook": lambda x: torch.Tensor.register_hook(var=x, hook=print),
    "too many": lambda x: torch.is_tensor(x, x),
    "str.join": lambda x: "-".join(iterable=["a", "b"]),
    "list.append": lambda x: [1].append(object=2),
    "str.split by its name": lambda x: "a-b".split(sep="-"),
    "tuple.__getitem__": lambda x: (1, 2).__getitem__(key=1),
    "str.__contains__": lambda x: "abc".__contains__(item="b"),
}


def outcome(call: Any, x: torch.Tensor) -> Any:
    try:
        return (call(x),)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", CALLS)
def test_as_in_eager(name: str) -> None:
    x = torch.rand(3, requires_grad=True)
    found = outcome(dynamo.compile(CALLS[name], backend="eager"), x)
    assert found == outcome(CALLS[name], x)


def test_no_row_takes_other_names() -> None:
    dynamo.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # loads all rows
    for function, rows in table.RULES.items():
        if type(function) is not types.FunctionType:
            continue
        own = inspect.signature(function).parameters
        if any(one.kind is one.VAR_KEYWORD for one in own.values()):
            continue
        for row in rows:
            for name in [*inspect.signature(row.handler).parameters][1:]:
                if name not in own:
                    with pytest.raises(Break):
                        table.apply(None, function, [], {name: ConstVar(1)})  # type: ignore[arg-type]
