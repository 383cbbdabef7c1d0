"""Whether eager refuses an operation that fakes let pass.

Many kernels look at dtypes (and some at sizes) only when they run. Where it matters whether an
operation fails, it is tried on small real tensors with the facts of its arguments, full of zeros
and full of ones: what refuses both depends on facts alone.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.base.value_types import CONSTANTS
from dynamo.shapes.fake_tensor import Fake

# Elements of arguments and results, and those to which all arguments together broadcast.
LIMIT, SPREAD = 1 << 16, 1 << 22
Known = Callable[[torch.Tensor], torch.Tensor | None]
PLAIN = (*CONSTANTS, type(...))


class _Unknown(Exception):
    """An argument that can't be made."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a fake says now: an operation may change it."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, fake: torch.Tensor) -> _Facts:
        if fake.device.type != "cpu" or fake.layout is not torch.strided or fake.is_quantized:
            raise _Unknown
        if fake.is_conj() or fake.is_neg():
            raise _Unknown
        storage = fake.storage_key if type(fake) is Fake else fake.untyped_storage()._cdata
        size, stride = (tuple(map(_number, each)) for each in (fake.shape, fake.stride()))
        return cls(storage, size, stride, _number(fake.storage_offset()), fake.dtype)

    @property
    def end(self) -> int:
        """Bytes up to its last element."""
        if 0 in self.size:
            return 0
        last = sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        return (self.offset + last + 1) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Unseen:
    """A number that only the running program knows."""

    kind: type


class Trial:
    """A call that may be tried, taken down before it runs on fakes."""

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], constant_of: Known = lambda fake: None
    ) -> None:
        """constant_of: gives the value of a fake that is known."""
        self._facts: dict[int, _Facts] = {}
        self._constant_of = constant_of
        try:
            self._call: Any = self._taken(args), self._taken(kwargs)
        except _Unknown:
            self._call = None

    def refuses(
        self, function: Callable[..., Any], result: Any, known: dict[Any, bool] | None = None
    ) -> bool | None:
        """True where eager fails whatever the values are; None where it can't be tried. result:
        what fakes have given. known: answers of the same compile, of which equal layers ask the
        same."""
        if self._call is None or not self._is_small(result):
            return None
        key = None if known is None else self._key(function)
        if key is None or known is None:
            return all(self._fails(function, value) for value in (0, 1))
        if key not in known:
            known[key] = all(self._fails(function, value) for value in (0, 1))
        return known[key]

    def _key(self, function: Callable[..., Any]) -> Any:
        """All that the answer depends on; None where that can't be looked up."""
        storages: dict[int, int] = {}
        try:
            key = (function, _state(), _key_of(self._call, storages))
            hash(key)
        except (TypeError, _Unknown):
            return None
        return key

    def _taken(self, value: Any) -> Any:
        """A nest of arguments, with facts for tensors."""
        if isinstance(value, torch.Tensor):
            known = self._constant_of(value)
            if known is not None:
                return known.clone()
            return self._facts.setdefault(id(value), _Facts.of(value))
        if isinstance(value, Mapping):
            return {name: self._taken(item) for name, item in value.items()}
        if isinstance(value, tuple | list):  # a named tuple comes as a result only
            kind = type(value) if type(value) in (tuple, list, torch.Size) else tuple
            return kind([self._taken(item) for item in value])
        if type(value) is slice:
            return slice(*map(self._taken, (value.start, value.stop, value.step)))
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return _taken_number(value)
        if not isinstance(value, PLAIN):
            raise _Unknown
        return value

    def _is_small(self, result: Any) -> bool:
        made = Trial((result,), {})
        if made._call is None or not (self._facts or made._facts):
            return False
        sizes = [facts.size for facts in self._facts.values()]
        rank = max(map(len, sizes), default=0)
        aligned = [(1,) * (rank - len(size)) + size for size in sizes]
        spread = math.prod(max(extents) for extents in zip(*aligned, strict=True))
        reach = max((facts.end for facts in self._facts.values()), default=0)
        count = sum(map(math.prod, [*sizes, *(facts.size for facts in made._facts.values())]))
        return count <= LIMIT and spread <= SPREAD and reach <= SPREAD

    def _fails(self, function: Callable[..., Any], value: int) -> bool:
        with without_effects(), torch.no_grad():
            try:
                args, kwargs = self._made(value)
            except NotImplementedError:  # a dtype without numbers
                return False
            try:
                function(*args, **kwargs)
            except Exception:
                return True
        return False

    def _made(self, value: int) -> tuple[Any, ...]:
        """Real arguments."""
        storages: dict[int, torch.UntypedStorage] = {}
        facts = self._facts.values()
        reals: dict[Any, Any] = {each: _real(each, facts, storages, value) for each in facts}
        reals.update((_Unseen(kind), kind(value)) for kind in NUMBERS.values())
        return tuple(_put(part, reals) for part in self._call)


@contextlib.contextmanager
def without_effects() -> Iterator[None]:
    """Nothing is left of what runs inside: neither numbers drawn nor warnings given, nor that a
    warning was given that torch gives once."""
    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(always)


def _number(value: Any) -> Any:
    """A number, or the first value of a symbolic one."""
    if type(value) in (int, float, bool):
        return value
    hint = value.node.hint
    if hint is None:
        raise _Unknown
    return hint if isinstance(hint, int | float) else int(hint)


NUMBERS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


def _taken_number(value: Any) -> Any:
    """The first value of a symbolic number, or that it has none so far."""
    return _Unseen(NUMBERS[type(value)]) if value.node.hint is None else _number(value)


def _state() -> tuple[Any, ...]:
    """What of torch's state decides whether a kernel refuses."""
    return (
        torch.get_default_dtype(), torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"), torch.are_deterministic_algorithms_enabled(),
        torch.is_inference_mode_enabled(),
    )  # fmt: skip


def _key_of(value: Any, storages: dict[int, int]) -> Any:
    """Equal for equal arguments, of equal types, that share storages in the same way."""
    if type(value) is _Facts:
        storage = storages.setdefault(value.storage, len(storages))
        return storage, value.size, value.stride, value.offset, value.dtype
    if type(value) is _Unseen:
        return value
    if isinstance(value, torch.Tensor):
        raise _Unknown  # a known value, of which the answer may depend
    if isinstance(value, dict):
        return dict, *[(name, _key_of(item, storages)) for name, item in value.items()]
    if type(value) in (tuple, list, torch.Size):
        return type(value), *[_key_of(item, storages) for item in value]
    if type(value) is slice:
        return slice, *[_key_of(p, storages) for p in (value.start, value.stop, value.step)]
    return type(value), repr(value) if isinstance(value, float | complex) else value


def _real(
    facts: _Facts, others: Collection[_Facts], storages: dict[int, torch.UntypedStorage], value: int
) -> torch.Tensor:
    storage = storages.get(facts.storage)
    if storage is None:
        end = max(other.end for other in others if other.storage == facts.storage)
        count = -(-end // facts.dtype.itemsize)
        full = torch.full((count,), value, dtype=facts.dtype, device="cpu")
        storage = storages[facts.storage] = full.untyped_storage()
    blank = torch.empty(0, dtype=facts.dtype, device="cpu")
    return blank.set_(storage, facts.offset, facts.size, facts.stride)


def _put(value: Any, reals: Mapping[Any, Any]) -> Any:
    if type(value) in (_Facts, _Unseen):
        return reals[value]
    if isinstance(value, dict):
        return {name: _put(item, reals) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)([_put(item, reals) for item in value])
    if type(value) is slice:
        return slice(*(_put(part, reals) for part in (value.start, value.stop, value.step)))
    return value
