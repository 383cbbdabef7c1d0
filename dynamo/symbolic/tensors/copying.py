"""`copy.deepcopy` of tensors, and of what is its own copy.

Eager copies a tensor's whole storage, once for all tensors in it that are copied with one memo. The
graph copies the tensor alone, which is the same where its elements lie densely and no other tensor
of the memo lies in its storage; for tensors from outside that is guarded.
"""

from __future__ import annotations

import copy

import torch

from dynamo.base.errors import Break
from dynamo.base.value_types import VALUES
from dynamo.guards.sources import DictSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.graph import storage_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar, inline_polyfill, shortens
from dynamo.symbolic.python.global_names import GlobalNames
from dynamo.symbolic.python.polyfills import copy_once
from dynamo.symbolic.tensors.hooks import set_requires_grad
from dynamo.symbolic.tensors.memory import guard_apart
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import in_transform, put_in_graph


class Copies:
    """The tensors that one trace has copied, by the memo of `copy.deepcopy`."""

    def __init__(self, trace: Evaluation) -> None:
        self.by_memo: dict[Var, list[TensorVar]] = {}


@rule(torch.Tensor.__deepcopy__, TensorVar)
def deepcopy_tensor(tx: Frame, var: TensorVar, memo: Var) -> Var:
    if var.cls is not torch.Tensor or memo.source is not None or in_transform():
        raise Break("call_of_unknown_function", f"deepcopy({var!r})")
    tensor_state(tx.trace).guard_history(var)
    if not var.fake.is_leaf:  # eager refuses
        raise Break("call_of_unknown_function", f"deepcopy({var!r}), which is no leaf")
    return inline_polyfill(tx, copy_once, [var, memo, copied_alone], {})


@shortens(copy.deepcopy)  # type: ignore[arg-type]
def deepcopy_atom(
    tx: Frame, x: Var, memo: Var | None = None, _nil: Var | None = None
) -> Var | None:
    """Numbers, texts and None are their own copies, where the memo has nothing else for them."""
    if _nil is not None or not isinstance(x, ConstVar) or x.python_type() not in VALUES:
        return None
    own, trace, name = vars(copy), tx.trace, "_deepcopy_dispatch"
    if own.get(name) is not DISPATCH or trace.effects.written_global(own, name)[0]:
        return None
    registry = wrap_named(trace, DISPATCH, trace.state(GlobalNames).source_of(own, name))
    row = registry.lookup(tx, trace.call(tx, type, x)) if isinstance(registry, DictVar) else None
    if not isinstance(row, FunctionVar) or row.real is not ATOMIC:
        return None
    row.guard_identity(trace)
    if memo is None or (isinstance(memo, ConstVar) and memo.value is None):
        return x
    if type(memo) is not DictVar or memo.python_type() is not dict or memo.source is not None:
        return None
    return x if memo.lookup(tx, trace.call(tx, id, x)) is None else None


DISPATCH = copy._deepcopy_dispatch  # type: ignore[attr-defined]
ATOMIC = getattr(copy, "_deepcopy_atomic", None)  # 3.14 on: `deepcopy` asks for these types first


class CopiedAlone(Var):
    """What copies a tensor that the memo lacks."""

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        var, memo = args
        assert isinstance(var, TensorVar)
        return copy_alone(tx, var, memo)


copied_alone = CopiedAlone()


def copy_alone(tx: Frame, var: TensorVar, memo: Var) -> Var:
    trace, fake = tx.trace, var.fake
    is_plain = fake.layout is torch.strided and fake.device.type in ("cpu", "cuda")
    dense = is_plain and torch.ops.aten.is_non_overlapping_and_dense.default(fake)
    if not dense or fake.is_quantized or fake.is_conj() or fake.is_neg():
        raise Break("call_of_unknown_function", f"deepcopy({var!r}), which is not dense")
    if var.written:
        raise Break("call_of_unknown_function", f"deepcopy({var!r}), which has attributes")
    if var.source is not None:
        grad = var.get_attr(tx, "grad")
        if not (grad.is_constant() and grad.as_constant() is None) or var.real.__dict__:
            raise Break("call_of_unknown_function", f"deepcopy({var!r}), which has attributes")
        trace.guard("DICT_KEYS", DictSource(var.source), ())
    others = trace.state(Copies).by_memo.setdefault(memo, [])
    if any(storage_of(other.fake) == storage_of(fake) for other in others):
        raise Break("call_of_unknown_function", f"deepcopy({var!r}), with another in its memory")
    others.append(var)
    given = [item for item in tensor_state(trace).tensor_inputs
             if storage_of(item.fake) in [storage_of(other.fake) for other in others]]
    if len(given) > 1 and not guard_apart(trace, given):
        raise Break("call_of_unknown_function", f"deepcopy({var!r}), with another in its memory")
    plain = put_in_graph(tx, torch.Tensor.detach, [var], {})
    like: dict[str, Var] = {"memory_format": ConstVar(torch.preserve_format)}
    made = put_in_graph(tx, torch.empty_like, [plain], like)
    put_in_graph(tx, torch.Tensor.copy_, [made, plain], {})  # counts as one write in eager, too
    assert isinstance(made, TensorVar)
    if fake.requires_grad:
        set_requires_grad(tx, made, ConstVar(True))
    return made
