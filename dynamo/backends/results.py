"""What the function of a backend returns: a tuple or list of all results of its graph.

A tensor in the place of a list would be taken apart into its rows, and a dict into its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo._C import checked_call
from dynamo.base.errors import BackendError


def checked(
    compiled: Callable[..., Any], tensors: Sequence[bool], place: str, backend: str
) -> Callable[..., Any]:
    """The backend's function with a check of what it returns. Errors: BackendError.

    tensors: for each result of the graph, whether that is a tensor; place: of the user's code.
    """
    count, places = len(tensors), [i for i, is_tensor in enumerate(tensors) if is_tensor]

    def decide(results: Any) -> Any:
        if not isinstance(results, (tuple, list)):
            found = f"a {type(results).__name__}"
        elif len(results) != count:
            found = f"{len(results)} value{'s' * (len(results) != 1)}"
        else:
            for index in places:
                if not isinstance(results[index], torch.Tensor):
                    found = f"a {type(results[index]).__name__} for the tensor with index {index}"
                    break
            else:
                return results
        raise BackendError(
            f"{place}\n  The function that the backend {backend!r} made of this graph returned "
            f"{found}, where the graph has {count} result{'s' * (count != 1)}.\n"
            "  What to do: have it return all that the graph's output node names, in order, in a "
            "tuple or a list, also where it is one: `return (y,)`.")

    return checked_call(compiled, tuple(tensors), torch.Tensor, decide)
