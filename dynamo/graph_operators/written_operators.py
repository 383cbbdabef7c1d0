"""A functional form for operators of libraries that write their arguments.

In: an operator such as `lib::fill(Tensor(a!) x, float k) -> ()`. Out: its twin, which writes
nothing and gives the written arguments as new values behind what the operator returns:
`(Tensor x, float k) -> Tensor`. Under functionalization a call of the operator becomes a call of
the twin; the backend calls the operator itself where nothing wants the old values.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.graph_operators.gradients import copy_strided

OpOverload = torch._ops.OpOverload
NAMESPACE = "dynamo_functional"
OF_TORCH = frozenset({"aten", "prim", "prims", "quantized", "mkldnn"})
FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


class Twins:
    """The twins of this process, and the libraries that functional forms are kept in."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: Any = None
        self.twins: dict[OpOverload, OpOverload | None] = {}
        self.written: dict[OpOverload, OpOverload] = {}
        self.forms: dict[str, Any] = {}


known = Twins()


def prepare_operators(gm: fx.GraphModule) -> None:
    """Gives the operators of a captured graph a functional form, where they need one."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                target = node.target
                if isinstance(target, torch._ops.OpOverloadPacket):
                    for name in target.overloads():
                        twin_of(getattr(target, name))
                elif isinstance(target, OpOverload):
                    twin_of(target)


def twin_of(operator: OpOverload) -> OpOverload | None:
    """The operator's functional form; None for one that writes nothing, or that has none."""
    if operator.namespace in OF_TORCH or not operator._schema.is_mutable:
        return None
    with known.lock:
        if operator not in known.twins:
            known.twins[operator] = _define(operator)
        return known.twins[operator]


def operator_of(twin: Any) -> OpOverload | None:
    """The operator that a twin stands for."""
    return known.written.get(twin) if getattr(twin, "namespace", "") == NAMESPACE else None


def written_places(operator: OpOverload) -> tuple[int, ...]:
    """The numbers of the arguments that it writes."""
    arguments = enumerate(operator._schema.arguments)
    return tuple(n for n, a in arguments if a.alias_info is not None and a.alias_info.is_write)


def _define(operator: OpOverload) -> OpOverload | None:
    schema = operator._schema
    places = written_places(operator)
    if any(str(schema.arguments[n].type) != "Tensor" for n in places):
        return None
    if any(r.alias_info is not None for r in schema.returns) or not places:
        return None
    if any(argument.kwarg_only for argument in schema.arguments):
        return None
    if known.library is None:
        known.library = torch.library.Library(NAMESPACE, "FRAGMENT")
    name = f"{operator.namespace}_{operator._opname}_{operator._overloadname}"
    returned = [str(r.type) for r in schema.returns] + ["Tensor"] * len(places)
    if any(kind != "Tensor" for kind in returned):
        return None
    taken = ", ".join(_argument_text(argument) for argument in schema.arguments)
    gives = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
    known.library.define(f"{name}({taken}) -> {gives}")
    known.library.impl(name, functools.partial(_run, operator), "CompositeExplicitAutograd")
    known.library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    fake = functools.partial(_run_on_fakes, operator)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=known.library)
    twin: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    known.written[twin] = operator
    if not _has_form(operator):
        form = torch.library.Library(operator.namespace, "IMPL")
        known.forms[operator.name()] = form  # which ends with its library
        form.impl(operator.name(), _functional(operator, twin), "Functionalize")
    return twin


def _argument_text(argument: Any) -> str:
    """`SymInt[] grid`."""
    return f"{_in_schema(str(argument.real_type))} {argument.name}"


def _in_schema(text: str) -> str:
    """`List[Optional[Tensor]]` as schemas write it."""
    for start, end in (("Optional[", "?"), ("List[", "[]")):
        if text.startswith(start):
            return _in_schema(text[len(start) : -1]) + end
    return "SymInt" if text == "int" else text


def _has_form(operator: OpOverload) -> bool:
    key = torch._C.DispatchKey.Functionalize
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))


def _run(operator: OpOverload, *args: Any) -> Any:
    given = list(args)
    for n in written_places(operator):
        given[n] = copy_strided(given[n], given[n])  # an operator may count on gaps
    returned = operator(*given)
    return _results(operator, returned, [given[n] for n in written_places(operator)])


def _run_on_fakes(operator: OpOverload, *args: Any) -> Any:
    given = list(args)
    for n in written_places(operator):
        given[n] = torch.empty_strided(
            given[n].size(), given[n].stride(), dtype=given[n].dtype, device=given[n].device)
    try:
        returned = operator(*given)
    except NotImplementedError:
        if not gives_nothing(operator):
            raise
        returned = None
    return _results(operator, returned, [given[n] for n in written_places(operator)])


def gives_nothing(operator: OpOverload) -> bool:
    """True for an operator of a library that needs no fake kernel: there is nothing to describe."""
    return operator.namespace not in OF_TORCH and not operator._schema.returns


def _results(operator: OpOverload, returned: Any, written: list[torch.Tensor]) -> Any:
    count = len(operator._schema.returns)
    results = [*([] if not count else [returned] if count == 1 else returned), *written]
    return results[0] if len(results) == 1 else tuple(results)


def _functional(operator: OpOverload, twin: OpOverload) -> Callable[..., Any]:
    """The kernel below which tensors are no longer written."""
    places = written_places(operator)
    count = len(operator._schema.returns)

    def call(*args: Any) -> Any:
        left = operator._schema.arguments[len(args):]
        args = (*args, *(argument.default_value for argument in left))
        inside = torch.utils._pytree.tree_map(_inside, args)
        with torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE):
            results = twin(*inside)
        results = (results,) if isinstance(results, torch.Tensor) else tuple(results)
        for n, value in zip(places, results[count:], strict=True):
            torch._functionalize_replace(args[n], value)  # type: ignore[attr-defined]
            torch._functionalize_commit_update(args[n])  # type: ignore[attr-defined]
            torch._functionalize_sync(args[n])  # type: ignore[attr-defined]
        outside = [torch._to_functional_tensor(value) for value in results[:count]]  # type: ignore[attr-defined]
        return None if not count else outside[0] if count == 1 else tuple(outside)

    return call


def _inside(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not torch._is_functional_tensor(value):
        return value
    torch._sync(value)  # type: ignore[attr-defined]
    return torch._from_functional_tensor(value)  # type: ignore[attr-defined]
