"""What `torch.distributions` asks of its own classes: a property that is computed on first use is,
read from the class, an object made anew for each read. All that is asked of it is its type. Which
function computes a divergence is looked up when the program is compiled.
"""

from __future__ import annotations

import warnings

from torch.distributions import kl, utils

from dynamo.guards.sources import DictSource, ItemSource, ModuleSource, ObjectSource
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import FunctionVar


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
