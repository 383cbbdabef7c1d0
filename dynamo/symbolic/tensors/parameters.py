"""`nn.Parameter(data)`: a leaf that the graph makes, and that gets its class when it leaves."""

from __future__ import annotations

import torch

from dynamo.base.errors import Break
from dynamo.base.subclasses import is_wrapper_class
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.hooks import set_requires_grad
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import in_transform, put_in_graph


@rule([torch.nn.Parameter])
def make_parameter(
    tx: Frame, data: Var = ConstVar(None), requires_grad: Var = ConstVar(True)  # noqa: B008
) -> Var:
    """Shares the memory of the data; whether it needs a gradient must be known."""
    if data.is_constant() and data.as_constant() is None:
        data = tx.trace.call(tx, torch.empty, ConstVar(0))
    if not isinstance(data, TensorVar) or not requires_grad.is_constant():
        raise Break("module_structure_change", f"Parameter({data!r}, {requires_grad!r})")
    flag, fake = requires_grad.as_constant(), data.fake
    can_learn = fake.dtype.is_floating_point or fake.dtype.is_complex
    is_plain = data.cls in (torch.Tensor, torch.nn.Parameter) and type(flag) is bool
    inference = tensor_state(tx.trace).inference_mode
    is_wrapper = is_wrapper_class(data.cls) and not data.overrides and type(flag) is bool
    inside = in_transform() and (flag or is_wrapper)  # what learns there is of no level
    if not (is_plain or is_wrapper) or (flag and not can_learn) or inside or inference:
        raise Break("module_structure_change", f"Parameter({data!r}, {requires_grad!r})")
    made = put_in_graph(tx, torch.Tensor.detach, [data], {})
    assert isinstance(made, TensorVar)
    if is_wrapper:
        return marked(tx, data, made, requires_grad)
    made.cls, made.fake._is_param = torch.nn.Parameter, True
    if flag:
        set_requires_grad(tx, made, ConstVar(True))
    return made


def marked(tx: Frame, data: TensorVar, made: TensorVar, requires_grad: Var) -> Var:
    """A wrapper keeps its class: an attribute says that it is a parameter."""
    if made.cls is not data.cls:
        raise Break("module_structure_change", f"Parameter({data!r}), whose detach() is another")
    if requires_grad.as_constant():
        set_requires_grad(tx, made, ConstVar(True))
    made.written["_is_param"] = ConstVar(True)
    tx.trace.effects.store_attr(made, "_is_param", ConstVar(True), raw=False)
    return made
