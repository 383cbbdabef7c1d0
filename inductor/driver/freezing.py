"""Parameters and buffers as constants of inference: what is made of them once.

In: a captured graph with its inputs (which of them are frozen), and for the compiled graph what it
wants prepared (`ir/graph.py: Prepared`). Out: a callable that hands prepared tensors on. It looks
at each call whether the frozen tensors are what they were (the same object, version and storage)
and prepares again what is not, so that a load of other weights or an optimizer's step between calls
is seen. Statistics of batch norms, whose training writes without counting a version, are compared.
Writes that do not count as a version (through `.data`, NumPy, other processes) are seen where they
change one of 32 words of a tensor, spread over it: one that changes the whole tensor is, one of a
few rows may not be. Weights that change at nearly every call are not prepared for long: then the
graph is recompiled, without.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter, call, is_
from typing import Any

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from dynamo.base import logs
from inductor.autotune.trials import give_back_memory
from inductor.ir.graph import Prepared
from inductor.runtime import _launch

PLAIN = (Tensor, torch.nn.Parameter)
VERSION = attrgetter("_version")
POINTER = Tensor.data_ptr
EXPIRED = torch.UntypedStorage._expired
# So many preparations, each for fewer calls than these, are not worth it.
MOST_IN_A_ROW, FEWEST_CALLS = 8, 4
# Bytes of preparations that leave other memory worth giving back.
LARGE = 1 << 24


def frozen_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> frozenset[int]:
    """Positions of a module's parameters and buffers among the inputs."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return frozenset(
        position
        for position, (node, value) in enumerate(zip(nodes, example_inputs, strict=True))
        if isinstance(value, torch.nn.Parameter) or node.meta.get("held_by_module")
        if type(value) in PLAIN and not value.is_inference()
    )


def steady_inputs(example_inputs: Sequence[Any], frozen: Collection[int]) -> frozenset[int]:
    """The frozen inputs that nothing writes between calls of inference: parameters and tables of
    indices. Other buffers may be caches or counters."""
    return frozenset(
        position
        for position, value in enumerate(example_inputs)
        if position in frozen
        if isinstance(value, torch.nn.Parameter)
        or value.dtype in (torch.int64, torch.int32) and value.numel() > 1
    )


class FrozenCall:
    """Calls `compiled` with its `count` inputs and the prepared tensors behind them; a position
    from `count` on is one of the prepared tensors before.

    unused: positions of prepared tensors that only others were made of; the graph gets None.
    instead: makes what is called once the weights turn out to change all the time, or None.
    """

    def __init__(
        self, compiled: Callable[..., Any], prepared: Sequence[Prepared], count: int,
        unused: Collection[int] = (),
        instead: Callable[[], Callable[..., Any] | None] | None = None,
    ) -> None:
        self.unused, self.instead = tuple(unused), instead
        self.calls, self.in_a_row = FEWEST_CALLS, 0
        self.plain: Callable[..., Any] | None = None
        self.compiled, self.prepared, self.count = compiled, prepared, count
        self.order = _order(prepared, count, self.unused)
        positions = {position for item in prepared for position in item.positions}
        self.positions = sorted(position for position in positions if position < count)
        self.compared = sorted({position for item in prepared for position in item.compared})
        # Replaced as a whole: calls may come from several threads.
        self.known: tuple[Identities, list[Tensor], list[Tensor | None], int] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self.plain is not None:
            return self.plain(*inputs)
        known = self.known
        values = [inputs[position] for position in self.positions]
        if known is not None and known[0].fit(values) and _launch.sample(values) == known[3]:
            contents = [inputs[position] for position in self.compared]
            if all(map(torch.equal, contents, known[1])):
                self.calls += 1
                return self.compiled(*inputs, *known[2])
        if self._gives_up():
            return self(*inputs)
        return self.compiled(*inputs, *self._prepare(inputs, values))

    def _gives_up(self) -> bool:
        """Whether the weights change so often that the graph without preparation is better."""
        self.in_a_row = self.in_a_row + 1 if self.calls < FEWEST_CALLS else 0
        self.calls = 0
        if self.in_a_row < MOST_IN_A_ROW or self.instead is None:
            return False
        make, self.instead = self.instead, None
        self.plain = make()
        if self.plain is None:
            return False
        self.known = None
        logs.log("inductor").emit("weights change at nearly each call: they are not prepared")
        return True

    def _prepare(self, inputs: Sequence[Any], values: list[Tensor]) -> list[Tensor | None]:
        self.known = None  # what is out of date does not live beside what is new
        telling = not any(value.is_inference() for value in values)
        identities = Identities.of(values, self._forgetting()) if telling else None
        sample = _launch.sample(values)
        with torch.inference_mode(False), torch.no_grad():
            given = [value.detach() if isinstance(value, Tensor) else value for value in inputs]
            contents = [given[position].clone() for position in self.compared]
            made = self._make(given)
        if _bytes(made) >= LARGE:
            give_back_memory()  # what copies were made of
        logs.log("inductor").emit(lambda: _memory_text(made))
        if identities is not None:
            self.known = identities, contents, made, sample
        return made

    def _forgetting(self) -> Callable[[Any], None]:
        """To be called when a weight dies: what was prepared does not outlive it (programs of lazy
        traces live on)."""
        reference = weakref.ref(self)

        def forget(dead: Any) -> None:
            call = reference()
            if call is not None:
                call.known = None

        return forget

    def _make(self, inputs: list[Any]) -> list[Tensor | None]:
        """What is prepared of these inputs. What others alone are made of lives no longer than
        these need it."""
        given: list[Any] = [*inputs, *[None] * len(self.prepared)]
        for place, last in self.order:
            item = self.prepared[place]
            made = item.make(*(given[position] for position in item.positions))
            given[self.count + place] = made
            for position in last:
                given[position] = None
        return given[self.count :]


def _order(
    prepared: Sequence[Prepared], count: int, unused: Collection[int]
) -> list[tuple[int, tuple[int, ...]]]:
    """Numbers of what is to be prepared, each just before it is first needed, and the positions
    that nothing needs behind it. What nothing needs at all is left out."""
    order: list[int] = []

    def add(position: int) -> None:
        place = position - count
        if place >= 0 and place not in order:
            for source in prepared[place].positions:
                add(source)
            order.append(place)

    for position in range(count, count + len(prepared)):
        if position not in unused:
            add(position)
    last = {p: at for at, place in enumerate(order) for p in prepared[place].positions}
    return [
        (place, tuple(p for p in unused if last.get(p) == at)) for at, place in enumerate(order)
    ]


def _memory_text(made: Sequence[Tensor | None]) -> str:
    count = sum(value is not None for value in made)
    return f"prepared {count} weights, {_bytes(made) / 2**20:.1f} MB"


def _bytes(made: Sequence[Tensor | None]) -> int:
    return sum(value.numel() * value.element_size() for value in made if value is not None)


@dataclass(frozen=True, slots=True)
class Identities:
    """Tensors as they were: the objects, their versions, where their data is, and its storages: an
    address may be given to another one once these have died."""

    objects: tuple[Callable[[], Tensor | None], ...]
    versions: tuple[int, ...]
    pointers: tuple[int, ...]
    storages: tuple[StorageWeakRef, ...]
    storage_numbers: tuple[int, ...]

    @staticmethod
    def of(values: list[Tensor], died: Callable[[Any], None] | None = None) -> Identities:
        """died: called when one of the objects dies, as long as these are kept."""
        objects = tuple(weakref.ref(value, died) for value in values)
        storages = tuple(StorageWeakRef(value.untyped_storage()) for value in values)
        return Identities(
            objects, tuple(map(VERSION, values)), tuple(map(POINTER, values)), storages,
            tuple(storage.cdata for storage in storages),
        )

    def fit(self, values: list[Tensor]) -> bool:
        """Whether these are the same tensors, unchanged. Runs at each call of a graph."""
        return (
            all(map(is_, map(call, self.objects), values))
            and tuple(map(VERSION, values)) == self.versions
            and tuple(map(POINTER, values)) == self.pointers
            and not any(map(EXPIRED, self.storage_numbers))
        )
