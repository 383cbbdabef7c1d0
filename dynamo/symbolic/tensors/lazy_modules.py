"""Lazy modules (`nn.LazyLinear`) that have not run yet: they get their parameters while tracing.

In: the first call of one, with tensors of which the sizes are known. Out: the module is what eager
makes of it at this call, drawn by the same generator, and the trace begins again. Only torch's own
ways of making parameters are known to look at nothing but sizes.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from dynamo.base.errors import Break, RestartTrace
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, module_of
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.tensors.tensor import TensorVar


def is_unfinished(module: torch.nn.Module | LazyModuleMixin) -> bool:
    """True for a lazy module (also one that is still being made) without all its parameters."""
    own = module.__dict__
    tensors = [*own.get("_parameters", {}).values(), *own.get("_buffers", {}).values()]
    return "_modules" not in own or any(map(torch.nn.parameter.is_lazy, tensors))


class LazyModuleVar(ObjectVar):
    """An existing lazy module without parameters, which can only be called."""

    def refuse(self) -> NoReturn:
        raise Break("lazy_module", type(self.real).__qualname__)

    def get_attr(self, tx: Frame, name: str) -> Var:
        self.refuse()

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        self.refuse()

    def del_attr(self, tx: Frame, name: str) -> None:
        self.refuse()

    def has_attr(self, tx: Frame, name: str) -> bool:
        self.refuse()

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        module = self.real
        if is_unfinished(module) and self.can_be_made(tx):
            shapes = [without_data(arg) for arg in args]
            named = {name: without_data(arg) for name, arg in kwargs.items()}
            try:
                module._infer_parameters(module, tuple(shapes), named)
            except Exception as error:  # eager is about to raise it again
                raise Break("lazy_module", type(module).__qualname__) from error
            raise RestartTrace(None)
        self.refuse()

    def can_be_made(self, tx: Frame) -> bool:
        """True where nothing but sizes is looked at, as far as is known."""
        own = self.real.__dict__
        hook = own.get("_forward_pre_hooks", {}).get(getattr(own.get("_initialize_hook"), "id", -1))
        makes = find_in_mro(type(self.real), "initialize_parameters")
        return (
            hook is not None and hook.__func__ is LazyModuleMixin._infer_parameters
            and len(own["_forward_pre_hooks"]) == 1
            and module_of(makes).startswith("torch.nn.modules.")
            and not torch.is_inference_mode_enabled()
        )


def without_data(value: Var) -> Any:
    """A tensor of the same sizes on no device; other arguments as constants."""
    if not isinstance(value, TensorVar):
        return value.as_constant()
    sizes = [size if type(size) is int else size.node.hint for size in value.fake.shape]
    if None in sizes:
        raise Break("unknown_number", f"a size of {value!r}")
    return torch.empty(sizes, dtype=value.fake.dtype, device="meta")
