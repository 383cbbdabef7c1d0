"""What the traced program changed: an ordered record, and a clock.

Every mutation of a Var is announced here first. The Var itself holds the new state (so later reads
see it); this table remembers which places must be written when the frame ends. A repeated write to
one place keeps only the last, at the position of the last write; a name keeps the position of its
first, as in a dict. Effects on objects that were made in the trace count only when the object is
reachable from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any

from dynamo.hook import Disabled
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.lookup import class_dict, instance_dict
from dynamo.symbolic.core.trace_result import (
    CallEffect,
    ConsumeEffect,
    ContentsEffect,
    DrawEffect,
    Effect,
    GrowEffect,
    RegisterEffect,
    StoreAttrEffect,
    StoreCellEffect,
    StoreClassAttrEffect,
    StoreGlobalEffect,
    StoreItemEffect,
)
from dynamo.symbolic.core.var import Var


class Effects:
    """The effects of one trace.

    clock: grows with every mutation; who finds it unchanged may drop what it did since.
    """

    def __init__(self) -> None:
        self.clock = 0
        self._places: dict[Hashable, Effect] = {}
        self._globals: dict[tuple[int, str], Var | None] = {}
        self.of_classes: dict[tuple[type, str], Var] = {}  # attributes written, by name
        self._calls = 0
        self._hooked: set[Var] = set()
        self.taken: Counter[int] = Counter()  # locks, by identity

    def _write(self, place: Hashable, effect: Effect) -> None:
        self.clock += 1
        self._places.pop(place, None)
        self._places[place] = effect

    def _write_name(self, place: Hashable, effect: StoreAttrEffect | StoreGlobalEffect) -> None:
        """A name that was deleted and is set again stands last; one that is only set again stays
        where it stands."""
        before: Any = self._places.get(place)
        if before is None or effect.value is None:
            self._write(place, effect)
        elif before.value is None:
            self._write(place, replace(effect, renewed=True))
        else:
            self.clock += 1
            self._places[place] = replace(effect, renewed=before.renewed)

    # -- announcing -------------------------------------------------------------------------

    def tick(self) -> None:
        """A mutation that leaves no record (an in-place graph operation)."""
        self.clock += 1

    def store_attr(self, target: Var, name: str, value: Var | None, raw: bool = True) -> None:
        """Attribute `name` of the target becomes `value` (None: deleted)."""
        self._write_name(("attr", target, name), StoreAttrEffect(target, name, value, raw))

    def change_contents(self, target: Var) -> None:
        """The contents of a list, dict, set or deque change."""
        self._write(("contents", target), ContentsEffect(target))

    def grow(self, method: Callable[..., Any], target: Var, items: list[Var]) -> None:
        """Items are put at the end of a list or deque, or into a set, of which nothing was read."""
        before = self._places.get(("grow", target))
        known = before.items if isinstance(before, GrowEffect) else ()
        self._write(("grow", target), GrowEffect(method, target, (*known, *items)))

    def store_item(self, target: Var, name: Hashable, key: Var, value: Var) -> None:
        """A dict from outside whose keys are not read gets an entry. Each is stored in its turn:
        the first store of a key decides its place in the order, the last one its value.
        name: what the key is equal to."""
        place = ("item", target, name)
        before = self._places.get(place)
        if isinstance(before, StoreItemEffect):
            self.clock += 1
            self._places[place] = replace(before, value=value)
        else:
            self._write(place, StoreItemEffect(target, key, value))

    def store_cell(self, cell: Var) -> None:
        """The contents of a cell change; the final ones are read from the Var."""
        self._write(("cell", cell), StoreCellEffect(cell, None))

    def store_global(self, module_globals: dict[str, Any], name: str, value: Var | None) -> None:
        """A module-level name becomes `value` (None: deleted)."""
        self._globals[id(module_globals), name] = value
        effect = StoreGlobalEffect(module_globals, name, value)
        self._write_name(("global", id(module_globals), name), effect)

    def store_class_attr(self, cls: type, name: str, value: Var) -> None:
        """Attribute `name` of a class becomes `value`."""
        self.of_classes[cls, name] = value
        place = ("class", cls, name)
        if place in self._places:  # the name stands where it stands
            self.clock += 1
            self._places[place] = StoreClassAttrEffect(cls, name, value)
        else:
            self._write(place, StoreClassAttrEffect(cls, name, value))

    def consume(self, iterator: Var, count: int) -> None:
        """In all, `count` items were taken from a real iterator."""
        self._write(("consume", iterator), ConsumeEffect(iterator, count))

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """A call with constant arguments (Vars of symbolic numbers and texts) that is replayed."""
        self._calls += 1
        self._write(("call", self._calls), CallEffect(function, args))

    def draw(
        self, function: Callable[..., Any], target: Var, args: tuple[Any, ...], result: Var
    ) -> None:
        """A random number."""
        self._calls += 1
        self._write(("draw", self._calls), DrawEffect(function, target, args, result))

    def output(self, function: Callable[..., Any], *args: Any) -> None:
        """A call that prints or the like, which may look at all that was written before it: no
        later write takes the place of an earlier one."""
        self._places = {
            place if place[0] == "sealed" else ("sealed", len(self._places), place): effect  # type: ignore[index]
            for place, effect in self._places.items()
        }
        self.call(function, *args)

    def register(
        self, function: Callable[..., Any], target: Var, value: Var | None, result: Var | None,
        is_of_gradient: bool,
    ) -> Hashable:  # fmt: skip
        """A hook is registered; the place is for `forget`."""
        self._calls += 1
        place = ("register", self._calls)
        self._hooked.add(target)
        self._write(place, RegisterEffect(function, target, value, result, is_of_gradient))
        return place

    def registered(self, target: Var) -> list[tuple[Callable[..., Any], Var]]:
        """The hooks that were registered on it in this trace, and with which function."""
        if target not in self._hooked:
            return []
        return [
            (effect.function, effect.value) for effect in self._places.values()
            if isinstance(effect, RegisterEffect) and effect.target is target
            and effect.value is not None
        ]

    def forget(self, place: Hashable) -> None:
        """What was to be done there is not to be done."""
        self.clock += 1
        self._places.pop(place, None)

    # -- reading ----------------------------------------------------------------------------

    def written_global(self, module_globals: dict[str, Any], name: str) -> tuple[bool, Var | None]:
        """(was it written in this trace, the value or None where it was deleted)."""
        key = (id(module_globals), name)
        return key in self._globals, self._globals.get(key)

    def targets(self) -> list[Var]:
        """What was changed, made in the trace or not."""
        return [var for var in map(_target, self._places.values()) if var is not None]

    def gradients(self) -> list[Var]:
        """The tensors whose `grad` the program has stored, and what it is there."""
        return [
            var for effect in self._places.values()
            if isinstance(effect, StoreAttrEffect) and _is_gradient(effect)
            for var in (effect.target, effect.value) if var is not None
        ]

    def has_outside(self, gradients: bool = True) -> bool:
        """True when something outside was changed, or is to be printed; torch's own names, as its
        transforms change them, do not count. gradients: `grad` of tensors counts."""
        return any(_is_outside(effect) for effect in self._places.values()
                   if not _is_of_torch(effect) and (gradients or not _is_gradient(effect)))

    def reach(self, roots: Iterable[Var]) -> bool:
        """True when something outside was changed that is found from the roots, or by a name: as a
        global, in a closure. `grad` of tensors and hooks on it do not count."""
        reached = closure(roots)
        return any(
            _is_outside(effect) and not _is_of_torch(effect) and not _is_gradient(effect)
            and (_target(effect) in reached or isinstance(effect, BY_NAME))
            for effect in self._places.values()
        )

    def places(self) -> dict[Hashable, Effect]:
        """What was written so far, for `changed_outside`."""
        return dict(self._places)

    def targets_since(self, before: dict[Hashable, Effect]) -> list[Var | None]:
        """What was changed since `before` (None: no object), modes of torch left out."""
        return [
            _target(effect) for place, effect in self._places.items()
            if before.get(place) is not effect
            and (not isinstance(effect, CallEffect) or _is_outside(effect))
        ]

    def forget_since(self, before: dict[Hashable, Effect]) -> None:
        """Drops what was written since `before`."""
        self._places = before

    def changed_outside(self, before: dict[Hashable, Effect]) -> bool:
        """True when something outside was changed since `before`."""
        return any(
            before.get(place) is not effect and _is_outside(effect)
            for place, effect in self._places.items()
        )

    def records(self, roots: Iterable[Var]) -> tuple[Effect, ...]:
        """The effects that the world outside can see, in program order.

        roots: what leaves the trace (returned, or alive at a break).
        """
        reached: set[Var] = set()
        live: set[Hashable] = set()
        work: list[Var] = list(roots)
        while True:
            while work:
                var = work.pop()
                if var not in reached:
                    reached.add(var)
                    work.extend(var.children())
            for place, effect in self._places.items():
                if place not in live and _is_visible(effect, reached):
                    live.add(place)
                    work.extend(_written(effect))
            if not work:
                break
        return tuple(_finish(effect) for place, effect in self._places.items() if place in live)


def closure(roots: Iterable[Var]) -> set[Var]:
    """The roots and what they are made of."""
    reached: set[Var] = set()
    work = list(roots)
    while work:
        var = work.pop()
        if var not in reached:
            reached.add(var)
            work.extend(var.children())
    return reached


BY_NAME = (StoreGlobalEffect, StoreClassAttrEffect, StoreCellEffect, RegisterEffect)
IN_PLACE = (StoreAttrEffect, ContentsEffect, GrowEffect, StoreItemEffect)


def _target(effect: Effect) -> Var | None:
    if isinstance(effect, IN_PLACE):
        return effect.target
    if isinstance(effect, StoreCellEffect):
        return effect.cell
    if isinstance(effect, ConsumeEffect):
        return effect.iterator
    return None


def _is_visible(effect: Effect, reached: set[Var]) -> bool:
    target = _target(effect)
    if target is None or target.source is not None:
        return True
    # Contents of new containers and cells are part of their own rebuilding.
    return isinstance(effect, StoreAttrEffect) and target in reached


def _is_outside(effect: Effect) -> bool:
    """True for a change of what existed before, and for output; modes of torch do not count."""
    if isinstance(effect, CallEffect):
        return isinstance(effect.function, Disabled)
    return _is_visible(effect, set()) and not _is_undone(effect)


def _is_gradient(effect: Effect) -> bool:
    if isinstance(effect, RegisterEffect):
        return effect.is_of_gradient
    return isinstance(effect, StoreAttrEffect) and effect.name == "grad" and not effect.raw


def _is_of_torch(effect: Effect) -> bool:
    """True for a global name of a module of torch."""
    return isinstance(effect, StoreGlobalEffect) and str(
        effect.module_globals.get("__name__")).startswith("torch.")


def outside_changes(effects: Iterable[Effect]) -> tuple[str, ...]:
    """The changes of what existed before, in words."""
    return tuple(_in_words(effect) for effect in effects if _is_outside(effect))


def _in_words(effect: Effect) -> str:
    name = getattr(effect, "name", "")
    if isinstance(effect, RegisterEffect):
        return f"a hook on {effect.target!r}"
    if isinstance(effect, CallEffect):
        return f"a call of {effect.function!r}"
    if isinstance(effect, DrawEffect):
        return f"the state of {effect.target!r}"
    if isinstance(effect, StoreGlobalEffect):
        return f"the global name {name}"
    if isinstance(effect, StoreClassAttrEffect):
        return f"the attribute {effect.cls.__qualname__}.{name}"
    part = f"attribute {name}" if name else "contents"
    return f"{part} of {_target(effect)!r}"


def _is_undone(effect: Effect) -> bool:
    """True where an attribute of a real object or class has got its old value again."""
    if isinstance(effect, StoreClassAttrEffect):
        return _is_old(effect.value, class_dict(effect.cls).get(effect.name, effect))
    if not isinstance(effect, StoreAttrEffect) or effect.value is None or effect.renewed:
        return False
    real = getattr(effect.target, "real", None)
    own = None if real is None else instance_dict(real)
    if own is None or not dict.__contains__(own, effect.name):
        return False
    return _is_old(effect.value, dict.__getitem__(own, effect.name))


def _is_old(value: Var, old: Any) -> bool:
    """True where None or a bool takes its own place."""
    if not isinstance(value, ConstVar) or not value.is_constant():
        return False
    new = value.as_constant()
    return old is new and (new is None or type(new) is bool)


def _written(effect: Effect) -> list[Var]:
    if isinstance(effect, RegisterEffect):
        return [effect.target] if effect.value is None else [effect.target, effect.value]
    if isinstance(effect, StoreClassAttrEffect):
        found = [effect.value]
    elif isinstance(effect, StoreAttrEffect | StoreGlobalEffect | StoreItemEffect):
        found = [] if effect.value is None else [effect.value]
    elif isinstance(effect, GrowEffect):
        found = list(effect.items)
    else:
        found = []
    target = _target(effect)
    return found if target is None else [*found, target]


def _finish(effect: Effect) -> Effect:
    if isinstance(effect, StoreCellEffect):
        return StoreCellEffect(effect.cell, next(iter(effect.cell.children()), None))
    return effect
