"""Programs whose inputs or outputs are wrapper subclasses, as programs of plain tensors.

In: a captured module and its example inputs. Out: a module that takes the inner tensors of wrappers
in their place and gives the inner tensors of wrappers that it returns, and the callable around it.
The stages behind see plain tensors at both ends; inside, the wrappers' own dispatch runs.

Gradients. An inner tensor is below autograd, the wrapper is what requires grad; and the gradient of
a wrapper may be of any class. So a plain program has a *carrier* for each plain tensor that a
gradient is made of: an input that nothing reads, whose gradient it is; an output that nothing
reads, whose gradient comes in. The class of a wrapper's gradient is known when backward has run:
the first guess is a gradient like the wrapper itself, and `OtherGradient` tells the right one. So
may that of a plain input be a wrapper (`WrapperGradient`): then it has carriers, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynamo.aot.fakes import is_fake, storage_key
from dynamo.aot.records import TAKES_WRAPPERS, Retrace, Unsupported, WrapperGradient
from dynamo.aot.symbolic_recipes import is_symbolic_value, reader_of, symbol_places
from dynamo.base.subclasses import Recipe, compose, inner_tensors, is_wrapper, recipe_of

Compiled = Callable[..., Any]
VALUE = "example_value"


@dataclass(frozen=True, slots=True)
class Form:
    """What a gradient is made of. recipe: None for a plain one. facts: of its plain tensors (size,
    stride, dtype, device)."""

    recipe: Recipe | None
    facts: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(value: Any) -> Form:
        recipe = recipe_of(value) if is_wrapper(value) else None
        return Form(recipe, tuple([
            (tuple(part.shape), tuple(part.stride()), part.dtype, part.device)
            for part in plain_tensors(value, recipe)
        ]))  # fmt: skip

    def make(self, plain: Sequence[Any]) -> Any:
        return plain[0] if self.recipe is None else compose(self.recipe, plain)

    def carriers(self) -> list[torch.Tensor]:
        """Tensors of these sizes, in the memory of one element."""
        return [
            torch.empty((), dtype=dtype, device=device).expand(size).requires_grad_()
            for size, _, dtype, device in self.facts
        ]

    @property
    def carried(self) -> list[Any]:
        """What its carriers must have in common with it."""
        return [(tuple(size), dtype, device) for size, _, dtype, device in self.facts]

    @property
    def has_gradients(self) -> bool:
        """Whether autograd can carry such tensors."""
        return all(dtype.is_floating_point or dtype.is_complex for _, _, dtype, _ in self.facts)


class OtherGradient(Retrace):
    """The gradient of the index-th input is not of the form that was guessed."""

    def __init__(self, index: int, form: Form) -> None:
        super().__init__(f"the gradient of input {index} is of another class")
        self.index = index
        self.form = form


def plain_tensors(value: Any, recipe: Recipe | None) -> list[Any]:
    """A value's plain tensors, of whatever class it is."""
    return [value] if recipe is None else inner_tensors(value, recipe)


# -- inside of the program ---------------------------------------------------------------------


class _Enter(torch.autograd.Function):
    """Makes a wrapper of an input's inner tensors; its gradient goes to the carriers. A plain input
    stays as it is."""

    @staticmethod
    def forward(ctx: Any, index: int, given: _Input, *tensors: Any) -> Any:
        ctx.index, ctx.given, ctx.count = index, given, len(tensors)
        ctx.set_materialize_grads(False)
        if given.recipe is None:
            return tensors[0].detach()
        return compose(given.recipe, tensors[:given.recipe.count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return (None,) * (2 + ctx.count)
        given, found = ctx.given, Form.of(grad)
        if found.carried != given.form.carried:
            raise OtherGradient(ctx.index, found)
        given.form = found
        return (None,) * (2 + given.count) + tuple(plain_tensors(grad, found.recipe))


class _Leave(torch.autograd.Function):
    """The inner tensors of an output, then its carriers."""

    @staticmethod
    def forward(ctx: Any, recipe: Recipe, value: Any) -> Any:
        ctx.form = form = Form.of(value)  # with the sizes that the value has where this runs
        inner = inner_tensors(value, recipe)
        ctx.mark_non_differentiable(*inner)
        ctx.set_materialize_grads(False)
        return (*inner, *[
            torch.empty_strided(size, stride, dtype=dtype, device=device)
            for size, stride, dtype, device in form.facts
        ])  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        carried = grads[-len(ctx.form.facts):]
        if all(grad is None for grad in carried):
            return None, None
        return None, ctx.form.make(carried)


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def _entering(index: int, given: _Input) -> Callable[..., Any]:
    recipe = given.recipe
    if given.form is None:
        assert recipe is not None
        return _named("make_wrapper", lambda *inner: compose(recipe, inner))
    return _named("enter_wrapper", lambda *tensors: _Enter.apply(index, given, *tensors))


def _leaving(recipe: Recipe, form: Form | None) -> Callable[..., Any]:
    if form is None:
        return _named("inner_tensors", lambda value: tuple(inner_tensors(value, recipe)))
    return _named("leave_wrapper", lambda value: _Leave.apply(recipe, value))


# -- around the program ------------------------------------------------------------------------


class _CarryIn(torch.autograd.Function):
    """The carriers of an input that requires grad."""

    @staticmethod
    def forward(ctx: Any, given: _Input, wrapper: Any) -> Any:
        assert given.form is not None
        ctx.form = given.form
        ctx.set_materialize_grads(False)
        return tuple(carrier.detach() for carrier in given.form.carriers())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if any(grad is None for grad in grads):
            return None, None
        return None, ctx.form.make(grads)


class _CarryOut(torch.autograd.Function):
    """The wrapper of an output's inner tensors, whose gradient goes to its carriers."""

    @staticmethod
    def forward(ctx: Any, recipe: Recipe, form: Form, *given: Any) -> Any:
        ctx.form, ctx.inner = form, recipe.count
        ctx.set_materialize_grads(False)
        return compose(recipe, given[:recipe.count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        nothing = (None,) * (2 + ctx.inner)
        if grad is None:
            return nothing + (None,) * len(ctx.form.facts)
        return nothing + tuple(plain_tensors(as_form(grad, ctx.form), ctx.form.recipe))


def as_form(grad: Any, form: Form) -> Any:
    """A gradient of the form that the graph was made for, by the protocol that classes have for it.

    Errors: RuntimeError where it can't be made one.
    """
    assert form.recipe is not None
    if type(grad) is form.recipe.cls:
        found = Form.of(grad).recipe
        assert found is not None
        if (found.names, found.context) == (form.recipe.names, form.recipe.context):
            return grad
        coerce = getattr(grad, "__coerce_same_metadata_as_tangent__", None)
        made = None if coerce is None else coerce(form.recipe.context)
    else:
        coerce = getattr(grad, "__coerce_same_metadata_as_tangent__", None)
        made = None if coerce is None else coerce(form.recipe.context, form.recipe.cls)
    if made is None:
        raise RuntimeError(
            f"dynamo: the gradient of an output of class {form.recipe.cls.__qualname__} came in as "
            f"a {type(grad).__qualname__} of another kind; compiled backward was made for the first"
        )
    return made


@dataclass(slots=True)
class _Input:
    """An input of the program. recipe: of a wrapper. form: of its gradient, if it gets one; learnt
    where backward is recorded. A plain input has one where its gradient is a wrapper."""

    recipe: Recipe | None
    form: Form | None

    @property
    def stays(self) -> bool:
        """Whether it is an input of the plain program, and no more."""
        return self.recipe is None and self.form is None

    @property
    def count(self) -> int:
        """How many plain tensors it is made of."""
        return 1 if self.recipe is None else self.recipe.count

    def plain(self, value: Any) -> list[Any]:
        if self.recipe is None:  # its gradient takes the way of the carriers
            inner = [value.detach()]
        else:
            inner = inner_tensors(value, self.recipe)
        if self.form is None:
            return inner
        carriers: Any = _CarryIn.apply(self, value)
        return [*inner, *carriers]


@dataclass(slots=True)
class _Output:
    """An output of the program: a plain value, a wrapper, or a wrapper among the inputs. read: its
    recipe at a call, where sizes in it are symbolic."""

    recipe: Recipe | None
    form: Form | None
    input: int | None = None
    read: Callable[[Sequence[Any]], Recipe] | None = None

    def take(self, results: list[Any], inputs: Sequence[Any]) -> Any:
        """The output, of the results that are left (reversed)."""
        if self.input is not None:
            return inputs[self.input]
        if self.recipe is None:
            return results.pop()
        count = self.recipe.count + (0 if self.form is None else len(self.form.facts))
        given = [results.pop() for _ in range(count)]
        recipe = self.recipe if self.read is None else self.read(inputs)
        if self.form is None:
            return compose(recipe, given)
        form = self.form if self.read is None else replace(self.form, recipe=recipe)
        return _CarryOut.apply(recipe, form, *given)


def has_wrapped_ends(gm: fx.GraphModule, examples: Sequence[Any]) -> bool:
    """True where an input or an output of the program is a wrapper subclass."""
    if any(map(is_wrapper, examples)):
        return True
    leaving = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    return any(is_wrapper(node.meta.get(VALUE)) for node in leaving.all_input_nodes)


def has_learners(examples: Sequence[Any]) -> bool:
    """True where an input gets a gradient."""
    return torch.is_grad_enabled() and any(
        isinstance(example, torch.Tensor) and example.requires_grad for example in examples)


def compile_flat(
    gm: fx.GraphModule, examples: Sequence[Any],
    compile_plain: Callable[[fx.GraphModule, list[Any]], Compiled], at_sizes: bool = False,
) -> Compiled:
    """Compiles the plain program of one with wrappers. at_sizes: for the sizes at hand.
    Errors: those of `compile_plain`; Unsupported where a gradient has no form."""
    trains = torch.is_grad_enabled()
    inputs = [_input_of(example, trains) for example in examples]
    for _ in range(len(inputs) + 1):
        flat, outputs, spec = _flat_module(gm, inputs)
        plain = [part for each, example in zip(inputs, examples, strict=True)
                 for part in _examples(each, example)]
        try:
            compiled = compile_plain(flat, plain)
        except OtherGradient as other:
            if not other.form.has_gradients:
                raise Unsupported(f"{other}, which autograd can't carry") from other
            if not at_sizes:
                _check_fixed(gm, other.index, other.form)
            inputs[other.index].form = other.form
            continue
        except WrapperGradient as other:
            index, form = _place_of(inputs, other.index), Form.of(other.grad)
            if not form.has_gradients or _is_written(gm, index):
                raise Unsupported(f"{other}, which autograd can't carry") from other
            if not at_sizes:
                _check_fixed(gm, index, form)
            inputs[index].form = form
            continue
        return _around(compiled, inputs, outputs, spec)
    raise Unsupported("the gradients of its inputs change their class")


def _check_fixed(gm: fx.GraphModule, index: int, form: Form) -> None:
    """Errors: Unsupported for a gradient of many sizes: its carriers have one."""
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    shown = places[index].meta.get(VALUE)
    if is_symbolic_value((form.recipe, form.facts, tuple(getattr(shown, "shape", ())))):
        raise Unsupported(f"the gradient of input {index}, a wrapper, has symbolic sizes")


def has_symbolic_sizes(gm: fx.GraphModule) -> bool:
    """True for a program of many sizes."""
    values = [node.meta.get(VALUE) for node in gm.graph.nodes if node.op == "placeholder"]
    return any(is_symbolic_value(tuple(value.shape) if isinstance(value, torch.Tensor) else value)
               for value in values)


def _place_of(inputs: Sequence[_Input], index: int) -> int:
    """The input of the program that an input of the plain one belongs to."""
    for place, each in enumerate(inputs):
        index -= each.count + (0 if each.form is None else len(each.form.facts))
        if index < 0:
            return place
    raise AssertionError("no such input")


def _is_written(gm: fx.GraphModule, index: int) -> bool:
    """True where the program writes into the memory of an input."""
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    mine = places[index].meta.get(VALUE)
    return not is_fake(mine) or any(
        is_fake(value) and storage_key(value) == storage_key(mine)
        for node in gm.graph.nodes for value in node.meta.get("changed", ()))


def _input_of(example: Any, trains: bool) -> _Input:
    if not is_wrapper(example):
        return _Input(None, None)
    recipe = recipe_of(example)
    if not (trains and example.requires_grad):
        return _Input(recipe, None)
    form = Form.of(example)
    if not form.has_gradients:  # as an int8 weight: then a plain one
        fact = (tuple(example.shape), tuple(example.stride()), example.dtype, example.device)
        form = Form(None, (fact,))
    return _Input(recipe, form)


def _examples(given: _Input, example: Any) -> list[Any]:
    if given.recipe is None:
        inner = [example if given.stays else example.detach()]
    else:
        with torch.no_grad():
            inner = inner_tensors(example, given.recipe)
    return inner if given.form is None else [*inner, *given.form.carriers()]


def _flat_module(
    gm: fx.GraphModule, inputs: Sequence[_Input]
) -> tuple[fx.GraphModule, list[_Output], Any]:
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    places: dict[fx.Node, int] = {}
    olds = [node for node in gm.graph.nodes if node.op == "placeholder"]
    entering: list[tuple[int, fx.Node, _Input, list[fx.Node]]] = []
    for index, (old, given) in enumerate(zip(olds, inputs, strict=True)):
        places[old] = index
        if given.stays:
            known[old] = graph.node_copy(old)
            continue
        fake = old.meta.get(VALUE)
        is_known = given.recipe is None or is_wrapper(fake)
        shown = plain_tensors(fake, given.recipe) if is_known else [None] * given.count
        if given.form is not None:
            shown += given.form.carriers()
        parts = []
        for at, value in enumerate(shown):
            part = graph.placeholder(f"{old.name}_{at}")
            part.meta[VALUE] = value
            parts.append(part)
        entering.append((index, old, given, parts))
    for index, old, given, parts in entering:
        made = graph.call_function(_entering(index, given), tuple(parts))
        made.meta[VALUE] = old.meta.get(VALUE)
        known[old] = made
    outputs: list[_Output] = []
    symbols = symbol_places(gm)
    spec = None
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op != "output":
            known[node] = graph.node_copy(node, known.__getitem__)
            continue
        flat, spec = pytree.tree_flatten(node.args[0])
        leaving: list[Any] = []
        for value in flat:
            outputs.append(_leave(graph, known, places, inputs, value, leaving))
            recipe = outputs[-1].recipe
            outputs[-1].read = None if recipe is None else reader_of(recipe, symbols)
        graph.output(tuple(leaving))
    module = fx.GraphModule(gm, graph)
    module.meta.update(gm.meta)
    module.meta[TAKES_WRAPPERS] = torch.is_grad_enabled()
    return module, outputs, spec


def _leave(
    graph: fx.Graph, known: dict[fx.Node, fx.Node], places: dict[fx.Node, int],
    inputs: Sequence[_Input], value: Any, leaving: list[Any],
) -> _Output:
    """Appends the plain values of an output."""
    if not isinstance(value, fx.Node):
        leaving.append(value)
        return _Output(None, None)
    fake: Any = value.meta.get(VALUE)
    if value in places and not inputs[places[value]].stays:
        return _Output(None, None, places[value])
    if not is_wrapper(fake):
        leaving.append(known[value])
        return _Output(None, None)
    recipe = recipe_of(fake)
    form = _form_of_tangent(fake) if fake.requires_grad else None
    if form is not None and not form.has_gradients:
        raise Unsupported(
            f"an output of class {recipe.cls.__qualname__} requires grad and is made of integers")
    parts = graph.call_function(_leaving(recipe, form), (known[value],))
    for at in range(recipe.count + (0 if form is None else len(form.facts))):
        leaving.append(graph.call_function(operator.getitem, (parts, at)))
    return _Output(recipe, form)


def _form_of_tangent(fake: Any) -> Form:
    """The form of the gradient of an output: the output's own, unless its class says another, as a
    sum that is pending over ranks does, whose gradient is whole on each."""
    coerce = getattr(fake, "__coerce_tangent_metadata__", None)
    with torch.no_grad():
        return Form.of(fake if coerce is None else coerce())


def _around(
    compiled: Compiled, inputs: list[_Input], outputs: list[_Output], spec: Any
) -> Compiled:
    plain_ends = all(out.recipe is None and out.input is None for out in outputs)

    def call(*given: Any) -> Any:
        plain: list[Any] = []
        for each, value in zip(inputs, given, strict=True):
            if each.stays:
                plain.append(value)
            else:
                plain += each.plain(value)
        results = compiled(*plain)
        if plain_ends:
            return pytree.tree_unflatten(list(results), spec) if nested else results
        left = [*results]
        left.reverse()
        return pytree.tree_unflatten([out.take(left, given) for out in outputs], spec)

    nested = spec.type is not tuple or any(not child.is_leaf() for child in spec.children())
    return call
