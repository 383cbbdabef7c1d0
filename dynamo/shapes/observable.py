"""What is observed of an operator though its result is not used: an error, random numbers, effects.

What an operator says of sizes and dtypes is known before it runs; whether an index is in range, a
matrix singular or an integer divisor zero is not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dynamo.graph_operators.operator_effects import acts, draws

# By the operator's name, without the underscore of its in-place form.
BY_VALUES = frozenset(
    """index index_put _index_put_impl index_select index_add index_copy index_fill index_reduce
    gather scatter scatter_add scatter_reduce take put masked_scatter embedding embedding_renorm
    _embedding_bag _embedding_bag_forward_only nll_loss_forward nll_loss2d_forward
    multi_margin_loss multilabel_margin_loss_forward binary_cross_entropy _ctc_loss max_unpool2d
    max_unpool3d segment_reduce repeat_interleave searchsorted quantile nanquantile histc
    lu_unpack _linalg_check_errors cholesky cholesky_inverse linalg_eig linalg_eigvals
    _linalg_eigvals _linalg_eigh _linalg_svd linalg_lstsq linalg_pinv bernoulli multinomial
    poisson normal""".split()
)
# Of these a GPU's kernels check the indices. They raise at no call but stop the device, so that no
# handler of the program can go on.
STOPS_A_GPU = frozenset(
    """index index_put _index_put_impl index_select index_add index_copy index_fill index_reduce
    gather scatter scatter_add scatter_reduce take put embedding nll_loss_forward
    nll_loss2d_forward""".split()
)
# Of integers these divide, which a zero refuses.
DIVISIONS = frozenset(("div", "floor_divide", "remainder", "fmod"))
CHECKS = "check_errors"


def may_fail(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True where the operator may raise for some values of these tensors.

    >>> x, i = torch.ones(3), torch.ones(3, dtype=torch.int64)
    >>> may_fail(torch.ops.aten.index_select.default, (x, 0, i), {})
    True
    >>> floor_divide = torch.ops.aten.floor_divide.default
    >>> [may_fail(floor_divide, given, {}) for given in ((i, i), (i, 2), (x, i))]
    [True, False, False]
    """
    kind = kind_of(func)
    if kind is None:
        return False
    if kind == CHECKS:
        place = [argument.name for argument in func._schema.arguments].index(CHECKS)
        return bool(args[place] if place < len(args) else kwargs.get(CHECKS, False))
    if kind == "division":
        return divides_integers(func, args, kwargs)
    return not fills_a_mask(args)


@functools.cache
def kind_of(func: Any) -> str | None:
    """What an operator's errors depend on; None for nothing in its tensors."""
    library, _, name = func._schema.name.partition("::")
    if library != "aten":
        return None
    if any(argument.name == CHECKS for argument in func._schema.arguments):
        return CHECKS
    name = name.removesuffix("_")
    return "values" if name in BY_VALUES else "division" if name in DIVISIONS else None


def fills_a_mask(args: Sequence[Any]) -> bool:
    """True for `x[mask] = number`."""
    if len(args) < 3 or not isinstance(args[1], list | tuple):
        return False
    masks = all(index is None or index.dtype is torch.bool for index in args[1])
    return masks and isinstance(args[2], torch.Tensor) and args[2].dim() == 0


def divides_integers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a division of integers by what may be zero."""
    if func._schema.name.removesuffix("_") == "aten::div" and not kwargs.get("rounding_mode"):
        return False
    divisor = args[1] if len(args) > 1 else None
    if type(divisor) is int and divisor:
        return False
    return not any(map(is_inexact, numbers_in(args)))


def observable_effects(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[str]:
    """Which of "fails", "raises" (an error that the program can catch), "draws" and "acts" hold of
    a call."""
    found = set()
    if may_fail(func, args, kwargs):
        found = {"fails"} if _stops_a_gpu(func, args) else {"fails", "raises"}
    if acts(func):
        found.add("acts")
    return found | {"draws"} if draws(func, args, kwargs) else found


def _stops_a_gpu(func: Any, args: Sequence[Any]) -> bool:
    name = func._schema.name.partition("::")[2].removesuffix("_")
    given = args[0] if args else None
    return name in STOPS_A_GPU and isinstance(given, torch.Tensor) and given.device.type == "cuda"


def numbers_in(values: Sequence[Any]) -> Iterator[Any]:
    return (value for value in values if isinstance(value, torch.Tensor | float | complex))


def is_inexact(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return value.is_floating_point() or value.is_complex()
