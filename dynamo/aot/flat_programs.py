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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynamo.aot.fakes import is_fake, storage_key
from dynamo.aot.gradient_forms import (
    Form,
    FormAt,
    Plain,
    as_form,
    carried_tensors,
    form_like,
    form_of_tangent,
    plain_tensors,
    reader,
    reader_in,
)
from dynamo.aot.records import TAKES_WRAPPERS, Place, Retrace, Unsupported, WrapperGradient
from dynamo.aot.symbolic_recipes import is_symbolic_value, places_in, reader_of, symbol_places
from dynamo.base.ragged_sizes import Ragged, is_jagged, ragged_size
from dynamo.base.subclasses import Recipe, compose, inner_tensors, is_wrapper, recipe_of

Compiled = Callable[..., Any]
VALUE = "example_value"


class OtherGradient(Retrace):
    """The gradient of the index-th input is not of the form that was guessed. form: what it is, of
    the input's plain tensors."""

    def __init__(self, index: int, form: FormAt, carries: bool) -> None:
        super().__init__(f"the gradient of input {index} is of another class")
        self.index = index
        self.form = form
        self.carries = carries


# -- inside of the program ---------------------------------------------------------------------


class _Enter(torch.autograd.Function):
    """Makes a wrapper of an input's inner tensors; its gradient goes to the carriers. A plain input
    stays as it is."""

    @staticmethod
    def forward(ctx: Any, index: int, given: _Input, *tensors: Any) -> Any:
        ctx.index, ctx.given, ctx.count = index, given, len(tensors)
        ctx.set_materialize_grads(False)
        assert given.form is not None
        ctx.plain = tensors[:given.count]
        ctx.form = given.form(ctx.plain)
        made = tensors[0].detach() if given.recipe is None else given.compose(ctx.plain)
        ctx.ragged = ragged_size(made) if is_jagged(made) else None
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return (None,) * (2 + ctx.count)
        given, found = ctx.given, Form.of(grad)
        if found.is_jagged != (ctx.ragged is not None) or found.is_jagged and (
                ragged_size(grad) != ctx.ragged):
            raise Unsupported("the gradient of a nested tensor has other offsets")
        learnt = reader_in(found, ctx.plain)
        if found.carried != ctx.form.carried:
            raise OtherGradient(ctx.index, learnt, found.has_gradients)
        given.form = learnt
        return (None,) * (2 + given.count) + tuple(carried_tensors(grad, found.recipe))


class _Leave(torch.autograd.Function):
    """The inner tensors of an output that leave, then its carriers."""

    @staticmethod
    def forward(ctx: Any, leaves: Callable[[Any], list[Any]], value: Any) -> Any:
        ctx.form = form = Form.of(value)  # with the sizes that the value has where this runs
        ctx.ragged = Ragged.of(value)
        inner = [part.detach() if part.requires_grad else part for part in leaves(value)]
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
        return None, ctx.form.make(carried, ctx.ragged)


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


def _entering(index: int, given: _Input) -> Callable[..., Any]:
    if given.form is None:
        return _named("make_wrapper", lambda *inner: given.compose(inner))
    return _named("enter_wrapper", lambda *tensors: _Enter.apply(index, given, *tensors))


def _leaving(leaves: Callable[[Any], list[Any]], form: Form | None) -> Callable[..., Any]:
    if form is None:
        return _named("inner_tensors", lambda value: tuple(leaves(value)))
    return _named("leave_wrapper", lambda value: _Leave.apply(leaves, value))


# -- around the program ------------------------------------------------------------------------


class _CarryIn(torch.autograd.Function):
    """The carriers of an input that requires grad."""

    @staticmethod
    def forward(ctx: Any, given: _Input, wrapper: Any) -> Any:
        assert given.form is not None
        ctx.form = form = given.form(plain_tensors(wrapper, given.recipe))
        ctx.ragged = Ragged.of(wrapper)
        ctx.set_materialize_grads(False)
        return tuple(carrier.detach() for carrier in form.carriers())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if any(grad is None for grad in grads):
            return None, None
        return None, ctx.form.make(grads, ctx.ragged)


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
        return nothing + tuple(carried_tensors(as_form(grad, ctx.form), ctx.form.recipe))


@dataclass(slots=True)
class _Input:
    """An input of the program. recipe: of a wrapper; read: with the sizes of a call, where some are
    symbolic. form: of its gradient, if it gets one, of the plain tensors that it is made of; learnt
    where backward is recorded. A plain input has one where its gradient is a wrapper. carriers: how
    many its gradient has."""

    recipe: Recipe | None
    read: Callable[[Plain], Recipe] | None = None
    form: FormAt | None = None
    carriers: int = 0

    @property
    def stays(self) -> bool:
        """Whether it is an input of the plain program, and no more."""
        return self.recipe is None and self.form is None

    @property
    def count(self) -> int:
        """How many plain tensors it is made of."""
        return 1 if self.recipe is None else self.recipe.count

    def compose(self, plain: Plain) -> Any:
        """The wrapper of these tensors."""
        assert self.recipe is not None
        return compose(self.recipe if self.read is None else self.read(plain), plain)

    def plain(self, value: Any) -> list[Any]:
        if self.recipe is None:  # its gradient takes the way of the carriers
            inner = [value.detach()]
        else:
            inner = inner_tensors(value, self.recipe)
        if self.form is None:
            return inner
        carriers: Any = _CarryIn.apply(self, value)
        return [*inner, *carriers]

    def shown(self, inner: list[Any]) -> list[Any]:
        """Examples of these, or fakes, with carriers behind."""
        return inner if self.form is None else [*inner, *self.form(inner).carriers(inner[0])]


@dataclass(slots=True)
class _Output:
    """An output of the program: a plain value, a wrapper, or a wrapper among the inputs. form: of
    its gradient, whose sizes nobody asks for. read: its recipe at a call, where sizes in it are
    symbolic. known: of its inner tensors, those that are the very tensors of an input (its place
    among the plain ones)."""

    recipe: Recipe | None
    form: Form | None
    input: int | None = None
    read: Callable[[Plain], tuple[Recipe, Recipe | None]] | None = None
    known: Mapping[int, int] = field(default_factory=dict)

    def take(self, results: list[Any], inputs: Plain, plain: Plain) -> Any:
        """The output, of the results that are left (reversed). plain: the compiled program's
        inputs."""
        if self.input is not None:
            return inputs[self.input]
        if self.recipe is None:
            return results.pop()
        inner = [
            plain[self.known[at]] if at in self.known else results.pop()
            for at in range(self.recipe.count)
        ]
        recipe, form = self.recipe, self.form
        if self.read is not None:
            recipe, of_gradient = self.read(plain)
            form = None if form is None else replace(form, recipe=of_gradient)
        if form is None:
            return compose(recipe, inner)
        carriers = [results.pop() for _ in form.facts]
        return _CarryOut.apply(recipe, form, *inner, *carriers)


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
    Errors: those of `compile_plain`; Unsupported where a gradient has no form, or sizes are
    symbolic that no plain tensor tells."""
    trains = torch.is_grad_enabled()
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    inputs = [_input_of(example, None if at_sizes else node.meta.get(VALUE), trains)
              for example, node in zip(examples, places, strict=True)]
    for _ in range(len(inputs) + 1):
        flat, outputs, spec = _flat_module(gm, inputs)
        plain = [part for each, example in zip(inputs, examples, strict=True)
                 for part in _examples(each, example)]
        try:
            compiled = compile_plain(flat, plain)
        except OtherGradient as other:
            if not other.carries:
                raise Unsupported(f"{other}, which autograd can't carry") from other
            _learn(inputs[other.index], other.form, examples[other.index])
            continue
        except WrapperGradient as other:
            index, form = _place_of(inputs, other.index), Form.of(other.grad)
            if form.is_jagged or not form.has_gradients or _is_written(gm, index):
                raise Unsupported(f"{other}, which autograd can't carry") from other
            _learn(inputs[index], reader_in(form, [other.grad]), examples[index])
            continue
        return _around(compiled, inputs, outputs, spec)
    raise Unsupported("the gradients of its inputs change their class")


def _learn(given: _Input, form: FormAt, example: Any) -> None:
    with torch.no_grad():
        given.carriers = len(form(plain_tensors(example, given.recipe)).facts)
    given.form = form


def has_symbolic_sizes(gm: fx.GraphModule) -> bool:
    """True for a program of many sizes."""
    values = [node.meta.get(VALUE) for node in gm.graph.nodes if node.op == "placeholder"]
    parts = [part for value in values
             for part in (inner_tensors(value, recipe_of(value)) if is_wrapper(value) else [value])]
    return any(is_symbolic_value(tuple(value.shape) if isinstance(value, torch.Tensor) else value)
               for value in [*values, *parts])


def _place_of(inputs: Sequence[_Input], index: int) -> int:
    """The input of the program that an input of the plain one belongs to."""
    for place, each in enumerate(inputs):
        index -= each.count + each.carriers
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


def _input_of(example: Any, fake: Any, trains: bool) -> _Input:
    if not is_wrapper(example):
        return _Input(None)
    recipe, shown = recipe_of(example), fake if is_wrapper(fake) else example
    places = places_in(plain_tensors(shown, recipe))
    read = reader_of(recipe_of(shown), places)
    if not (trains and example.requires_grad):
        return _Input(recipe, read)
    form = form_like(shown)
    return _Input(recipe, read, reader(form, places), len(form.facts))


def _examples(given: _Input, example: Any) -> list[Any]:
    if given.stays:
        return [example]
    with torch.no_grad():
        return given.shown([example.detach()] if given.recipe is None else (
            inner_tensors(example, given.recipe)))


def _flat_module(
    gm: fx.GraphModule, inputs: Sequence[_Input]
) -> tuple[fx.GraphModule, list[_Output], Any]:
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    places: dict[fx.Node, int] = {}
    olds = [node for node in gm.graph.nodes if node.op == "placeholder"]
    seen: dict[int, fx.Node] = {}
    entering: list[tuple[int, fx.Node, _Input, list[fx.Node]]] = []
    for index, (old, given) in enumerate(zip(olds, inputs, strict=True)):
        places[old] = index
        if given.stays:
            known[old] = seen[id(old.meta.get(VALUE))] = graph.node_copy(old)
            continue
        fake = old.meta.get(VALUE)
        is_known = given.recipe is None and fake is not None or is_wrapper(fake)
        shown = given.shown(plain_tensors(fake, given.recipe)) if is_known else (
            [None] * (given.count + given.carriers))
        parts = []
        for at, value in enumerate(shown):
            part = graph.placeholder(f"{old.name}_{at}")
            part.meta[VALUE] = value
            # One tensor of offsets in several nested tensors is one in the program.
            parts.append(seen.setdefault(id(value), part) if is_jagged(fake) else part)
        entering.append((index, old, given, parts))
    for index, old, given, parts in entering:
        made = graph.call_function(_entering(index, given), tuple(parts))
        made.meta[VALUE] = old.meta.get(VALUE)
        known[old] = made
    outputs: list[_Output] = []
    ends = _Ends(graph, known, places, inputs)
    spec = None
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op != "output":
            known[node] = graph.node_copy(node, known.__getitem__)
            continue
        flat, spec = pytree.tree_flatten(node.args[0])
        outputs = [ends.leave(value) for value in flat]
        graph.output(tuple(ends.leaving))
    module = fx.GraphModule(gm, graph)
    module.meta.update(gm.meta)
    module.meta[TAKES_WRAPPERS] = torch.is_grad_enabled()
    return module, outputs, spec


class _Ends:
    """The outputs of the plain program. known: its values, by the program's. places: of the
    program's inputs. leaving: what leaves."""

    def __init__(
        self, graph: fx.Graph, known: dict[fx.Node, fx.Node], places: Mapping[fx.Node, int],
        inputs: Sequence[_Input],
    ) -> None:
        self.graph, self.known, self.places, self.inputs = graph, known, places, inputs
        self.leaving: list[Any] = []
        ends = [node for node in graph.nodes if node.op == "placeholder"]
        self._plain = {id(node.meta.get(VALUE)): at for at, node in enumerate(ends)}
        self._symbols: Mapping[Any, Place] = symbol_places(graph)

    def leave(self, value: Any) -> _Output:
        """Appends the plain values of an output."""
        if not isinstance(value, fx.Node):
            self.leaving.append(value)
            return _Output(None, None)
        fake: Any = value.meta.get(VALUE)
        if value in self.places and not self.inputs[self.places[value]].stays:
            return _Output(None, None, self.places[value])
        if not is_wrapper(fake):
            self.leaving.append(self.known[value])
            return _Output(None, None)
        recipe = recipe_of(fake)
        form = form_of_tangent(fake) if fake.requires_grad else None
        given = self._of_inputs(fake, recipe)

        def leaves(made: Any) -> list[Any]:
            inner = inner_tensors(made, recipe)
            return [part for at, part in enumerate(inner) if at not in given]

        parts = self.graph.call_function(_leaving(leaves, form), (self.known[value],))
        for at in range(recipe.count - len(given) + (0 if form is None else len(form.facts))):
            self.leaving.append(self.graph.call_function(operator.getitem, (parts, at)))
        read = reader_of((recipe, None if form is None else form.recipe), self._symbols)
        return _Output(recipe, form, None, read, given)

    def _of_inputs(self, fake: Any, recipe: Recipe) -> dict[int, int]:
        """Of a nested tensor, the offsets that an input has, and the like: its ragged size is that
        of the very tensor."""
        if not is_jagged(fake):
            return {}
        inner = inner_tensors(fake, recipe)
        return {at: self._plain[id(part)] for at, part in enumerate(inner)
                if at > 0 and id(part) in self._plain}


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
        return pytree.tree_unflatten([out.take(left, given, plain) for out in outputs], spec)

    nested = spec.type is not tuple or any(not child.is_leaf() for child in spec.children())
    return call
