"""What `torch.distributions` asks of its own classes: a property that is computed on first use is,
read from the class, an object made anew for each read. All that is asked of it is its type. Which
function computes a divergence is looked up when the program is compiled. Whether matrices are
positive definite is computed without a branch on their values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributions import constraints, kl, utils

from dynamo.guards.sources import DictSource, ItemSource, ModuleSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import FunctionVar
from dynamo.symbolic.tensors.tensor import TensorVar


@rule([utils._lazy_property_and_property])
def property_of_class(tx: Frame, wrapped: Var) -> Var | None:
    """`Categorical.probs`."""
    if not isinstance(wrapped, FunctionVar) or wrapped.real is None:
        return None
    made = utils._lazy_property_and_property(wrapped.real)
    return tx.trace.wrap(made, ObjectSource(made, wrapped.name))


REGISTRY = ItemSource(DictSource(ModuleSource(kl.__name__)), "_KL_REGISTRY")


@rule([kl.kl_divergence])
def divergence(tx: Frame, p: Var, q: Var) -> Var | None:
    """`kl_divergence(p, q)`; ambiguous and unknown pairs are left to its own code."""
    with warnings.catch_warnings(record=True) as warned:
        found = kl._dispatch_kl(p.python_type(), q.python_type())
    if warned or found is NotImplemented:
        return None
    tx.trace.guard("LENGTH", REGISTRY, len(kl._KL_REGISTRY))
    return tx.call(tx.trace.wrap(found, ObjectSource(found, found.__name__)), [p, q], {})


SYMMETRIC = constraints.symmetric.check.__func__  # type: ignore[attr-defined]


@rule([constraints.positive_definite.check.__func__])  # type: ignore[attr-defined]
def is_positive_definite(tx: Frame, constraint: Var, value: Var) -> Var | None:
    """`positive_definite.check(value)`: it asks more of what is symmetric only."""
    if not isinstance(value, TensorVar) or value.fake.dim() < 2:
        return None
    check = tx.trace.wrap(SYMMETRIC, ObjectSource(SYMMETRIC, "check"))
    symmetric = tx.call(check, [constraint, value], {})
    if value.fake.shape[-2] != value.fake.shape[-1]:
        return symmetric

    def call(function: Callable[..., Any], *args: Var) -> Var:
        return tx.trace.call_real(tx, function, list(args), {})

    _, info = call(torch.linalg.cholesky_ex, value).unpack(tx)
    definite = call(torch.Tensor.eq, info, ConstVar(0))
    return call(torch.where, call(torch.Tensor.all, symmetric), definite, symmetric)
