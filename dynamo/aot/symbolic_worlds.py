"""The reference world of graphs with symbolic sizes: torch's FakeTensor with a ShapeEnv of its own.

In: a captured module whose placeholders tell by `meta["example_value"]` which sizes are symbolic,
and real example inputs. Out: a world with the face of `ReferenceWorld`. Equal sizes of the capture
share a symbol here; the values at hand are the hints; numbers among the inputs are symbols.
Importing this module costs seconds, so that only graphs with symbolic sizes do.

Inputs and tensor attributes are modelled with offset 0: offsets of their views count from where
these begin.
Errors: Unsupported, for all that fails.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch.utils._python_dispatch import _disable_current_modes

from dynamo.aot.fakes import (
    SymbolicFacts,
    expression_of,
    facts_of,
    is_fake,
    is_symbolic_number,
    number_at,
    symbols_shown,
)
from dynamo.aot.records import Place, SymbolTable, Unsupported
from dynamo.aot.reference import BERNOULLI, check_reach, check_write, may_write, note_view
from dynamo.aot.symbolic_ops import RememberedOps
from dynamo.aot.symbols import names_of, text_of
from dynamo.base.dispatch_modes import OwnDispatchMode
from dynamo.base.subclasses import is_foreign
from dynamo.shapes.facts import Facts
from dynamo.shapes.symbolic import SymbolicWorld, quiet

aten = torch.ops.aten
FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


# What torch's C++ calls where it wants plain ints.
READS_NUMBERS = frozenset((aten.size.default, aten.stride.default, aten.storage_offset.default))
# Composite calls whose C++ makes sizes constant without an error (torch 2.14; before, it called
# `aten.size`).
IN_PYTHON = frozenset((torch.stft, "stft"))
# A storage is resized or exchanged; memory is pinned or not.
NOT_MODELLED = frozenset((aten.resize_, aten.resize_as_, aten.set_, aten.is_pinned))


class ReadsNumbers(Unsupported):
    """C++ code that knows no symbols."""


class NeedsPython(Unsupported):
    """A call that fails as eager runs it: torch may have a version in Python that does not."""

    def __init__(self, target: Any) -> None:
        super().__init__(f"{target} with symbolic sizes")
        self.target = target


class _FactsMaker:
    """Facts of this world: not interned, since SymInts don't hash."""

    def facts(self, size: Any, stride: Any, offset: Any, dtype: Any, device: Any) -> Facts:
        return SymbolicFacts(size, stride, offset, dtype, device)

    def facts_of(self, tensor: torch.Tensor, device: torch.device) -> Facts:
        return SymbolicFacts(
            tuple(tensor.shape), tuple(tensor.stride()), 0, tensor.dtype, device)


@contextlib.contextmanager
def _outside_recording() -> Iterator[None]:
    """Neither functionalized nor seen by the recorder."""
    with torch._C._ExcludeDispatchKeyGuard(FUNCTIONALIZE), _disable_current_modes():
        yield


class _Watcher(OwnDispatchMode):
    """Sees the operations of the reference run before the fakes do."""

    def __init__(self, world: SymbolicReferenceWorld) -> None:
        super().__init__()
        self.world = world

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):
            self.world.meets_wrappers = True
            return NotImplemented
        self.world.watch(func, args, kwargs or {})
        result = self.world.dispatch(func, args, kwargs or {})
        with _outside_recording():
            note_view(func, args, result)
        return result


def _sharing(examples: Sequence[Any]) -> frozenset[int]:
    """Which inputs share a storage with another input, each fake having one of its own."""
    tensors = {index: real for index, real in enumerate(examples) if isinstance(real, torch.Tensor)}
    storages = {index: real.untyped_storage()._cdata for index, real in tensors.items()}
    counts = Counter(storages.values())
    return frozenset(index for index, storage in storages.items() if counts[storage] > 1)


class SymbolicReferenceWorld:
    """See `ReferenceWorld`. places: where each symbol is read. python_calls: what runs `in_python`.
    """

    is_symbolic = True
    meets_wrappers = False

    def __init__(
        self, gm: fx.GraphModule, examples: Sequence[Any], python_calls: frozenset[Any]
    ) -> None:
        self.python_calls = python_calls
        self.bernoulli: list[bool] = []
        self.cache = _FactsMaker()
        self.places: dict[Any, Place] = {}
        self.shared = _sharing(examples)
        self._world = SymbolicWorld()
        self._watcher = _Watcher(self)
        self._ops = RememberedOps(self._world.mode, self._run)
        nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
        shown = [node.meta.get("example_value") for node in nodes]
        self._symbols = self._name_sizes(shown, examples)
        self._inputs = [
            self._make_input(index, *pair)
            for index, pair in enumerate(zip(shown, examples, strict=True))
        ]

    # -- inputs ---------------------------------------------------------------------------------

    def _name_sizes(self, shown: list[Any], examples: Sequence[Any]) -> dict[Any, Any]:
        """The new SymInt of each symbol of the capture that is a size or stride of an input."""
        found: dict[Any, Any] = {}
        for index, (fake, real) in enumerate(zip(shown, examples, strict=True)):
            for symbol, dim in symbols_shown(fake) if is_fake(fake) else ():
                if symbol not in found:
                    found[symbol] = self._symbol((index, dim), number_at(real, dim))
        return found

    def _symbol(self, place: Place, value: int) -> Any:
        """A new symbol; sizes of 0 and 1 are constants, since broadcasting and emptiness depend on
        them: the graph is then for these alone (see `check_of`)."""
        index, dim = place
        if dim is not None and value < 2:
            return value
        make = self._world.number if dim is None else self._world.size
        name = f"n{index}" if dim is None else f"s{index}_{dim}" if dim >= 0 else f"t{index}_{~dim}"
        number = make(name, value)
        if is_symbolic_number(number) and number.node.expr.is_Symbol:
            self.places[number.node.expr] = place
        return number

    def _make_input(self, index: int, shown: Any, real: Any) -> Any:
        if isinstance(real, torch.Tensor):
            return self._tensor(index, shown, real)
        if type(real) is int:
            return self._symbol((index, None), real)
        if real is None or isinstance(real, (bool, str)):
            return real
        raise Unsupported(f"an input is a {type(real).__name__}")

    def _tensor(self, index: int, shown: Any, real: torch.Tensor) -> Any:
        if not isinstance(shown, torch.Tensor):
            return self._world.from_real(real)
        sizes = [
            self._number(size, (index, dim), real.shape[dim])
            for dim, size in enumerate(shown.shape)
        ]
        try:
            strides = [
                self._number(stride, None, step)
                for stride, step in zip(shown.stride(), real.stride(), strict=True)
            ]
        except Unsupported:
            strides = self._dense(shown, sizes, real)
        return self._world.make(real, sizes, strides)

    def _dense(self, shown: torch.Tensor, sizes: list[Any], real: torch.Tensor) -> list[Any]:
        """The strides of a tensor without gaps, whose sizes are numbers of their own here.

        Errors: Unsupported where it may have gaps.
        """
        strides, inner, dense = [0] * real.dim(), 1, 1
        for axis in sorted(range(real.dim()), key=lambda axis: real.stride(axis)):
            stride = shown.stride(axis)
            if expression_of(stride - dense) != 0:
                raise Unsupported(f"a stride {expression_of(stride)}")
            strides[axis] = inner
            inner, dense = inner * sizes[axis], dense * shown.shape[axis]
        return strides

    def _number(self, shown: Any, place: Place | None, value: int) -> Any:
        """The number of the capture in our symbols; a size that is none of them is a new symbol."""
        expression = expression_of(shown)
        if type(expression) is int or expression.is_Integer:
            return value
        if expression in self._symbols:
            return self._symbols[expression]
        if expression.free_symbols <= self._symbols.keys():
            ours = {symbol: expression_of(new) for symbol, new in self._symbols.items()}
            env = self._world.env
            return env.create_symintnode(expression.xreplace(ours), hint=value)
        if place is None:
            raise Unsupported(f"a stride {expression}")
        return self._symbol(place, value)

    def input(self, index: int, example: Any) -> Any:
        """What stands for the index-th input: a FakeTensor, a SymInt, or the value itself."""
        return self._inputs[index]

    # -- fakes ----------------------------------------------------------------------------------

    def forget_reals(self) -> None:
        self._world.forget_reals()

    def from_real(self, tensor: torch.Tensor) -> Any:
        """The fake of an input or of a tensor attribute."""
        return self._world.from_real(tensor)

    def make(self, facts: Facts) -> Any:
        """A new fake with these facts."""
        if facts.bits:
            raise Unsupported("lazy conjugation or negation")
        with _outside_recording(), self._world.mode, torch.no_grad():
            return torch.empty_strided(
                facts.size, facts.stride, dtype=facts.dtype, device=facts.device)

    # -- running --------------------------------------------------------------------------------

    def __enter__(self) -> SymbolicReferenceWorld:
        self._world.mode.__enter__()
        self._watcher.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watcher.__exit__(*error)
        self._world.mode.__exit__(*error)

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One ATen call on fakes."""
        if func is torch.ops.prim.device.default:  # asked for each argument of a C++ call
            return args[0].device
        if func in READS_NUMBERS:
            raise ReadsNumbers(f"{func} makes sizes constant")
        if func.overloadpacket in NOT_MODELLED:
            raise Unsupported(f"{func} with symbolic sizes")
        with _outside_recording():
            return self._ops(func, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._world.mode, enable_python_dispatcher(), quiet():
            return func(*args, **kwargs)

    def in_python(self) -> AbstractContextManager[None]:
        """Composite operations run in Python's versions, which keep sizes symbolic."""
        return enable_python_dispatcher()  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def around(self, node: fx.Node) -> Iterator[None]:
        """What a call of the program runs in: as eager runs it, unless that failed before."""
        if node.target in self.python_calls or node.target in IN_PYTHON:
            with self.in_python():
                yield
            return
        try:
            yield
        except Exception as error:
            if isinstance(error, Unsupported) and not isinstance(error, ReadsNumbers):
                raise
            raise NeedsPython(node.target) from error

    def watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes and checks an operation of the reference run; see `ReferenceWorld`."""
        if may_write(func):
            with _outside_recording():
                check_write(func, args, kwargs)
        if func is aten.as_strided.default:
            if args[3:] and args[3] is not None or kwargs.get("storage_offset") is not None:
                raise Unsupported("as_strided, whose offset counts from the storage's begin")
            with _outside_recording():
                check_reach(facts_of(args[0]), *args[1:3])
        in_place = BERNOULLI.get(func)
        if in_place is not None:
            self.bernoulli.append(in_place)

    # -- what was assumed -----------------------------------------------------------------------

    def table(self) -> SymbolTable:
        """The symbols, and all that was assumed of them until now. Errors: Unsupported."""
        world = self._world
        found = (guard.expr for guard in world.env.guards if not world.is_ragged(guard.expr))
        assumptions = tuple(dict.fromkeys(found))
        names = names_of(self.places)
        for assumption in assumptions:
            text_of(assumption, names)
        return SymbolTable(MappingProxyType(dict(self.places)), assumptions)


