"""Traceable wrapper subclasses in a trace: see `dynamo.base.subclasses`.

Such a tensor is a value of the graph like any other: operations on it are nodes, and their own
dispatch runs over fakes while tracing, and again where a backend takes the graph apart. Known, and
guarded, are its class, what `__tensor_flatten__` says, and the metadata of its inner tensors.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dynamo.base.errors import Break
from dynamo.base.ragged_sizes import Jagged, is_jagged, is_nested_int
from dynamo.base.subclasses import (
    Recipe,
    compose,
    compose_one,
    is_wrapper,
    is_wrapper_class,
    plain_context,
    recipe_of,
)
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.sources import (
    AttrSource,
    EqualSource,
    Flattened,
    ItemSource,
    SameLayout,
    Source,
    flattened,
)
from dynamo.shapes.fake import NoFakeKernel, give_history
from dynamo.shapes.fake_tensor import NotSymbolic
from dynamo.shapes.marks import Mark
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_owner
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named, wraps_if
from dynamo.symbolic.python.construction import Construction
from dynamo.symbolic.shapes.sizes import dynamic_dims, is_argument
from dynamo.symbolic.shapes.symbols import Symbols
from dynamo.symbolic.tensors import nested
from dynamo.symbolic.tensors.constant_objects import (
    guard_value,
    is_of_distributed,
    is_structural,
    place_of,
    without_objects,
)
from dynamo.symbolic.tensors.input_fakes import go_symbolic, open_layout
from dynamo.symbolic.tensors.loss_parallel import guard_table
from dynamo.symbolic.tensors.masked_partials import has_mask
from dynamo.symbolic.tensors.meshes import answer
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import (
    class_of,
    is_plain_result,
    put_in_graph,
    sequence_of,
)

# Contexts of torch's own classes that nothing changes in place.
SPEC, CONTEXTS = "_spec", frozenset(("DTensorSpec",))
OF_TORCH = frozenset(("_is_param", "_is_buffer"))


@wraps_if(9, is_wrapper)
def wrap_wrapper(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """One from outside, unread."""
    if value.is_nested and not is_jagged(value):
        raise Break("tensor_not_modelled", "a nested tensor")
    return TensorVar(None, None, source, real=value, trace=trace, cls=type(value))


def wrapper_fake(trace: Evaluation, var: TensorVar) -> Any:
    """The fake of one from outside, and its guards."""
    real, source = var.real, var.source
    assert real is not None and source is not None
    names, context, _ = flattened(real)
    dims = own_dims(trace, var)
    if is_jagged(real):
        nested.guard_nested(trace, real, source)
    elif dims:
        trace.guard("TYPE", source, type(real))
        guard_context(trace, real, source)
    else:
        trace.guard("TENSOR", source, TensorFacts.of(real))
        guard_context(trace, real, source)
    note_parts(trace, real, source, names)
    if hasattr(real, SPEC):  # a DTensor
        guard_table(trace)
        if has_mask(real):
            raise Break("tensor_subclass", "a DTensor whose mask was made outside of the graph")
    inner = {}
    for name in names:
        value = inner[name] = getattr(real, name)
        if isinstance(value, torch.Tensor):
            part = trace.wrap(value, place_of(real, source, name))
            assert isinstance(part, TensorVar)
            inner[name] = part.fake
            if hasattr(real, SPEC):
                check_fixed(trace, real, part.fake)
    size, stride = own_layout(trace, var, dims, inner.values())
    if is_jagged(real):
        nested.know_ragged_size(trace, var, inner)
        context = plain_context(context)
    try:
        return give_history(real, lambda: trace.world.run(
            compose_one, type(real), inner, context, size, stride))
    except NoFakeKernel as error:
        raise Break("tensor_subclass", f"{type(real).__qualname__}: {error}") from error


def check_fixed(trace: Evaluation, real: Any, inner: Any) -> None:
    """Errors: NotSymbolic for a distributed tensor that requires grad and is of many sizes."""
    if real.requires_grad and any(type(n) is not int for n in inner.shape):
        raise NotSymbolic(f"a {type(real).__qualname__} requires grad")


def own_dims(trace: Evaluation, var: TensorVar) -> Mapping[int, Mark]:
    """A wrapper's own dimensions that are symbolic."""
    real, source, symbols = var.real, var.source, trace.symbols
    assert real is not None and source is not None and isinstance(symbols, Symbols)
    dims = {} if is_jagged(real) or hasattr(real, SPEC) else dynamic_dims(symbols, real, source)
    go_symbolic(trace, dims)
    return dims


def own_layout(
    trace: Evaluation, var: TensorVar, dims: Mapping[int, Mark], inner: Iterable[Any]
) -> tuple[Any, Any]:
    """A wrapper's own sizes and strides, with their guards where they are symbolic: in symbols of
    its inner tensors. Errors: NotSymbolic for others."""
    real, source, symbols = var.real, var.source, trace.symbols
    assert real is not None and source is not None and isinstance(symbols, Symbols)
    if is_jagged(real):
        return (), ()
    if not dims:
        return tuple(real.shape), tuple(real.stride())
    symbols.tensors[source] = var
    size, stride = open_layout(trace, real, source, dims)
    parts = [n for part in inner if isinstance(part, torch.Tensor) for n in part.shape]
    if not symbols_in(size) <= symbols_in(parts):
        raise NotSymbolic(f"sizes of a {type(real).__qualname__} that no inner tensor has")
    return tuple(size), tuple(stride)


def symbols_in(sizes: Iterable[Any]) -> set[Any]:
    """The symbols of numbers."""
    return {symbol for size in sizes if isinstance(size, torch.SymInt) and not is_nested_int(size)
            for symbol in size.node.expr.free_symbols}


def note_parts(trace: Evaluation, real: Any, source: Source, names: Iterable[str]) -> None:
    """Inner tensors of an argument are arguments, where all sizes of such are symbolic."""
    symbols = trace.symbols
    assert isinstance(symbols, Symbols)
    if not hasattr(real, SPEC) and (is_argument(source) or source in symbols.parts):
        symbols.parts |= {place_of(real, source, name) for name in names}


def wrapper_node(trace: Evaluation, var: TensorVar) -> fx.Node:
    """The graph's value of one from outside. Where it needs no gradient, its inner tensors are the
    inputs, which guards have fetched, and the graph makes the wrapper of them."""
    assert var.real is not None and var.source is not None
    inner = [] if var.real.requires_grad else inner_vars(trace, var)
    if not inner:
        return trace.graph.placeholder(var.source, var.fake)
    recipe = recipe_of(var.real)
    nodes = tuple([part.node for part in inner])
    layout = () if is_jagged(var.fake) else (var.fake.shape, var.fake.stride())
    if not any(type(n) is not int for part in layout for n in part):
        return trace.graph.read_input("call_function", maker(recipe), nodes, var.fake)
    size, stride = (tuple([trace.constant(n).as_proxy() for n in part]) for part in layout)
    return trace.graph.read_input(
        "call_function", open_maker(recipe), (size, stride, *nodes), var.fake)


def inner_vars(trace: Evaluation, var: TensorVar) -> list[TensorVar]:
    """The plain tensors that one from outside is made of."""
    found: list[TensorVar] = []
    assert var.source is not None
    for name in flattened(var.real)[0]:
        real, place = getattr(var.real, name), place_of(var.real, var.source, name)
        if not isinstance(real, torch.Tensor):
            continue
        part = trace.wrap(real, place)
        assert isinstance(part, TensorVar)
        found += inner_vars(trace, part) if is_wrapper(real) else [part]
    return found


def maker(recipe: Recipe) -> Any:
    """What makes a wrapper of plain tensors, as the target of a node."""

    def make_wrapper(*plain: Any) -> torch.Tensor:
        return compose(recipe, plain)

    make_wrapper.__name__ = make_wrapper.__qualname__ = f"make_{recipe.cls.__name__}"
    return make_wrapper


def open_maker(recipe: Recipe) -> Any:
    """The same of sizes and strides, and plain tensors."""

    def make_wrapper(size: Any, stride: Any, *plain: Any) -> torch.Tensor:
        return compose(replace(recipe, size=tuple(size), stride=tuple(stride)), plain)

    make_wrapper.__name__ = make_wrapper.__qualname__ = f"make_{recipe.cls.__name__}"
    return make_wrapper


def guard_context(trace: Evaluation, real: Any, source: Source) -> None:
    """Guards what `__tensor_flatten__` says: by the values that the instance has, where guards can
    tell them, else by asking again at each call."""
    names, context, others = flattened(real)
    spec = getattr(real, SPEC, None)
    if is_held(source) and type(spec).__name__ in CONTEXTS:
        place = AttrSource(source, SPEC)
        trace.guard("CONST", EqualSource(place, SameLayout(spec)), True)
        return
    rest = {
        name: value for name, value in getattr(real, "__dict__", {}).items()
        if name not in names and name not in OF_TORCH
    }
    if rest and not others and all(map(is_structural, rest.values())):
        for name, value in rest.items():
            guard_value(trace, value, place_of(real, source, name))
    else:
        said = Flattened((names, context, others))
        trace.guard("CONST", EqualSource(source, said), True)


def is_held(source: Source) -> bool:
    """True for a parameter or buffer of a module, which is the same object at each call."""
    return isinstance(source, ItemSource) and source.registry() in ("_parameters", "_buffers")


# -- attributes --------------------------------------------------------------------------------


def get_attr(tx: Frame, var: TensorVar, name: str) -> Var | None:
    """`wrapper.name`; None where all tensors have it alike."""
    fake: Any = var.fake
    if var.cls is Jagged:
        known = nested.get_attr(tx, var, name)
        if known is not None:
            return known
    names, _ = fake.__tensor_flatten__()
    if name in names and isinstance(getattr(fake, name), torch.Tensor):
        return inner(tx, var, name)
    found = find_owner(var.cls, name)
    own = getattr(fake, "__dict__", {})
    if name in own and (found is None or not hasattr(type(found[1]), "__set__")):
        return own_value(tx, var, name, own[name])
    if found is None or issubclass(torch.Tensor, found[0]):
        return None
    if isinstance(found[1], types.MemberDescriptorType):  # a slot
        return own_value(tx, var, name, getattr(fake, name))
    return tx.trace.attributes.bind(tx, var, var.cls, name)


def inner(tx: Frame, var: TensorVar, name: str) -> Var:
    """An inner tensor: an input where guards have fetched it, else made of the wrapper's value."""
    fake = getattr(var.fake, name)
    fetched = _fetched(tx.trace, var, name)
    if fetched is not None and fetched.fake is fake:  # else an operation has put another one there
        return fetched
    known = var.parts.get(name)
    if known is None or known.node._erased:
        node = tx.trace.graph.operation("call_function", getattr, (var.node, name), {}, fake)
        known = var.parts[name] = TensorVar(node, fake, cls=class_of(fake))
    return known


def _fetched(trace: Evaluation, var: TensorVar, name: str) -> TensorVar | None:
    """The input that an inner tensor is, of a wrapper from outside that needs no gradient."""
    if var.real is None or var.source is None or var.real.requires_grad:
        return None
    real = getattr(var.real, name)
    if not isinstance(real, torch.Tensor):
        return None
    found = trace.wrap(real, place_of(var.real, var.source, name))
    return found if isinstance(found, TensorVar) else None


def own_value(tx: Frame, var: TensorVar, name: str, value: Any) -> Var:
    """What the instance has beside its inner tensors."""
    if is_of_distributed(value):  # a part of the context, which is guarded
        return answer(tx, value, name)
    if var.real is not None and var.source is not None:
        place = place_of(var.real, var.source, name)
        return wrap_named(tx.trace, getattr(var.real, name), place)
    if is_plain_result(value):
        return _plain_value(tx, value)
    if isinstance(value, type | types.FunctionType) or is_structural(value):
        return tx.trace.wrap(value, None)  # of a context that is guarded where it came from
    raise Break("tensor_subclass", f"{name} of {var.cls.__qualname__}")


def _plain_value(tx: Frame, value: Any) -> Var:
    """A number, known or symbolic, a string and the like, or a list or tuple of such."""
    if type(value) in (list, tuple, torch.Size):
        return sequence_of(value, [_plain_value(tx, item) for item in value])
    return tx.trace.constant(value)


# -- making them -------------------------------------------------------------------------------


def make(tx: Frame, cls: type, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
    """`cls(*args, **kwargs)` of a wrapper subclass: one node; the class's own `__new__` and
    `__init__` run as they are. None for other classes."""
    if not is_wrapper_class(cls):
        return None
    return put_in_graph(tx, *without_objects(tx, cls, args, kwargs))


Construction.make_tensor = staticmethod(make)
TensorVar.wrapper_fake = staticmethod(wrapper_fake)
TensorVar.wrapper_node = staticmethod(wrapper_node)
