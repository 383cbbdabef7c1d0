"""What the gradient of a wrapper is made of: its *form*.

In: a gradient where backward is recorded, or a wrapper whose gradient will be like itself. Out: how
one is made of plain tensors, which autograd carries. The sizes in a form may be symbolic: of the
recording, of the captured program. `reader` makes a function of it that gives the form for plain
tensors of a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dynamo.aot.records import Place, Unsupported
from dynamo.aot.symbolic_recipes import places_in, reader_of
from dynamo.base.ragged_sizes import Jagged, Ragged, is_jagged
from dynamo.base.subclasses import Recipe, compose, inner_tensors, is_wrapper, recipe_of

Plain = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Form:
    """What a gradient is made of. recipe: None for a plain one. facts: of the tensors that autograd
    carries (size, stride, dtype, device): the plain ones that it is made of, and of a nested tensor
    the values alone."""

    recipe: Recipe | None
    facts: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(value: Any) -> Form:
        recipe = recipe_of(value) if is_wrapper(value) else None
        return Form(recipe, tuple([_facts_of(part) for part in carried_tensors(value, recipe)]))

    def make(self, plain: Plain, ragged: Ragged | None) -> Any:
        """The gradient of these tensors. ragged: the other parts of a nested tensor."""
        if self.is_jagged:
            assert ragged is not None and self.recipe is not None
            return ragged.around(plain[0], self.recipe.context["ragged_idx"])
        return plain[0] if self.recipe is None else compose(self.recipe, plain)

    def carriers(self, like: Any = None) -> list[torch.Tensor]:
        """Tensors of these sizes, in the memory of one element; fakes where `like` is one with
        symbolic sizes."""
        world = like.fake_mode if type(like) is FakeTensor else contextlib.nullcontext()
        with world:
            return [
                torch.empty((), dtype=dtype, device=device).expand(size).requires_grad_()
                for size, _, dtype, device in self.facts
            ]

    @property
    def is_jagged(self) -> bool:
        """Whether it is a nested tensor."""
        return self.recipe is not None and self.recipe.cls is Jagged

    @property
    def carried(self) -> list[Any]:
        """What its carriers must have in common with it."""
        return [(tuple(size), dtype, device) for size, _, dtype, device in self.facts]

    @property
    def has_gradients(self) -> bool:
        """Whether autograd can carry such tensors."""
        return all(dtype.is_floating_point or dtype.is_complex for _, _, dtype, _ in self.facts)


FormAt = Callable[[Plain], Form]


def _facts_of(part: torch.Tensor) -> tuple[Any, ...]:
    return tuple(part.shape), tuple(part.stride()), part.dtype, part.device


def form_like(value: Any) -> Form:
    """The form that the gradient of a wrapper is expected to have: the wrapper's own; a plain one
    where that is made of integers, as an int8 weight is."""
    form = Form.of(value)
    return form if form.has_gradients else Form(None, (_facts_of(value),))


def plain_tensors(value: Any, recipe: Recipe | None) -> list[Any]:
    """A value's plain tensors, of whatever class it is."""
    return [value] if recipe is None else inner_tensors(value, recipe)


def carried_tensors(value: Any, recipe: Recipe | None) -> list[Any]:
    """Those of a gradient that autograd carries."""
    return [value._values] if is_jagged(value) else plain_tensors(value, recipe)


def reader(form: Form, places: Mapping[Any, Place]) -> FormAt:
    """The form at a call, of plain tensors. Errors: Unsupported where they don't tell its sizes."""
    read = reader_of(form, places)
    return read if read is not None else lambda plain: form


def reader_in(form: Form, plain: Plain) -> FormAt:
    """The same, where the sizes of these tensors tell those of the form."""
    return reader(form, places_in(plain))


def as_form(grad: Any, form: Form) -> Any:
    """A gradient of the form that the graph was made for, by the protocol that classes have for it.

    Errors: RuntimeError where it can't be made one.
    """
    assert form.recipe is not None
    if type(grad) is form.recipe.cls:
        found = Form.of(grad).recipe
        assert found is not None
        same_parts = form.is_jagged or found.names == form.recipe.names
        if same_parts and found.context == form.recipe.context:
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


def form_of_tangent(fake: Any) -> Form:
    """The form of the gradient of an output: the output's own, unless its class says another, as a
    sum that is pending over ranks does, whose gradient is whole on each."""
    coerce = getattr(fake, "__coerce_tangent_metadata__", None)
    with torch.no_grad():
        form = Form.of(fake if coerce is None else coerce())
    if not form.has_gradients:
        raise Unsupported(
            f"an output of class {type(fake).__qualname__} requires grad and is made of integers")
    return form
