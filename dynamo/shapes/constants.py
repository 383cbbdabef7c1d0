"""What tensors hold that are made of constants: `torch.arange(3)`, `torch.tensor([2, 3])[0]`.

In: each ATen call of a world, with its result on fakes. Where all that goes in is known and small,
the same call runs on real tensors, so that the program may read the result while it is traced.
A write makes the whole storage unknown for good, whatever is written: the trace may take back what
it has done, and what it runs on fakes may run twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.base.value_types import CONSTANTS

LARGEST = 1024  # elements
KNOWN = "known_value"
DEVICES = ("cpu", "cuda")
# Operators that make tensors of numbers. Those of `empty` hold anything.
MAKERS = frozenset(
    """arange zeros ones full scalar_tensor linspace logspace eye zeros_like ones_like full_like
    new_zeros new_ones new_full""".split()
)
NOT_KNOWN = ("empty", "new_empty", "resize")
# Operators that say something of values; the tensors are their first arguments.
READS = frozenset(getattr(torch.ops.aten, name).default
                  for name in ("_local_scalar_dense", "equal", "allclose"))
# Operators that write into arguments although their schemas do not say so.
SECRET_WRITERS = ("batch_norm", "instance_norm", "rrelu")
PLAIN = frozenset(CONSTANTS)


@dataclass(frozen=True, slots=True)
class Role:
    """What an operator does to what is known.

    written: places and names of the arguments that it writes; all of them where it is None.
    """

    written: tuple[int | str, ...] | None
    is_pure: bool
    makes: bool


@functools.cache
def role_of(func: Any) -> Role:
    library, _, name = func._schema.name.partition("::")
    written: list[int | str] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += [index, argument.name]
    if any(part in name for part in SECRET_WRITERS):
        return Role(None, False, False)
    pure = library == "aten" and not written and not name.startswith(NOT_KNOWN)
    pure = pure and torch.Tag.nondeterministic_seeded not in func.tags
    return Role(tuple(written), pure, pure and name in MAKERS)


class Constants:
    """See the module.

    kind: of fakes. storage_of: what tells the storage of one from others; keeper_of: what has that
    in use, without the fake itself: one in a function of autograd would keep all others. varies:
    True while an operation runs on numbers that are others in later calls. autocast: while
    operators work in other dtypes. settled: an operation has run whose result has its size from
    values. read: the fakes of which the last operation took a number. times_read: how often that
    was, ever.
    """

    def __init__(
        self, kind: type, storage_of: Callable[[Any], int], keeper_of: Callable[[Any], Any]
    ) -> None:
        self.kind, self.storage_of, self.keeper_of = kind, storage_of, keeper_of
        self.varies = self.autocast = self.settled = False
        self.read: list[Any] = []
        self.times_read = 0
        self._storages: dict[int, Any] = {}  # with their keepers

    def value(self, fake: Any) -> torch.Tensor | None:
        """What a fake is known to hold; nobody may write into it."""
        if type(fake) is not self.kind:  # a wrapper of a transform
            return None
        known: torch.Tensor | None = fake.__dict__.get(KNOWN)
        return known if known is not None and self.storage_of(fake) in self._storages else None

    def learn(self, fake: Any, value: torch.Tensor) -> None:
        """A fake with a storage of its own holds this."""
        if value.numel() <= LARGEST and value.device.type in DEVICES and not self.varies:
            fake.__dict__[KNOWN] = value
            self._storages[self.storage_of(fake)] = self.keeper_of(fake)

    def forget(self, fake: Any) -> None:
        """Something has been written into a fake's storage."""
        if self._storages and type(fake) is self.kind:
            self._storages.pop(self.storage_of(fake), None)

    def follow(
        self, func: Any, role: Role, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """After a call of an operator on fakes."""
        if role.written != ():
            if self._storages:
                for fake in _tensors(_written(role, args, kwargs)):
                    self.forget(fake)
        elif role.makes or (role.is_pure and (self._storages or _are_numbers(args))):
            if not (self.varies or self.autocast):
                self._compute(func, role, args, kwargs, result)

    def _compute(
        self, func: Any, role: Role, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        if not role.makes and any(type(a) is self.kind and KNOWN not in a.__dict__ for a in args):
            return  # the same as below, sooner
        made = list(result) if isinstance(result, list | tuple) else [result]
        given = list(_tensors((args, kwargs)))
        if not (given or role.makes or _are_numbers(args)):
            return
        if any(type(fake) is not self.kind for fake in made):
            return
        if not all(map(_is_small, made)):
            return
        if not role.makes and any(self.value(value) is None for value in given):
            return
        fakes = [value for value in given if type(value) is self.kind]
        found = self._run(func, args, kwargs)
        if found is None:
            return
        values = list(found) if isinstance(found, list | tuple) else [found]
        for fake, value in zip(made, values, strict=True):
            if any(fake is other for other in fakes):
                continue
            if value.shape != fake.shape or value.dtype != fake.dtype:
                return
            if self.storage_of(fake) in map(self.storage_of, fakes):
                fake.__dict__[KNOWN] = value
            else:
                self.learn(fake, value)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result on real tensors; None where it raises, as it will where the program runs."""
        try:
            with torch._C._DisableTorchDispatch(), torch._C._DisablePythonDispatcher():
                return func(*self._real(args), **self._real(kwargs))
        except Exception:
            return None

    def settle(self, func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
        """What an operation gives whose results have sizes from values; None if that is open."""
        given = list(_tensors((args, kwargs)))
        if self.varies or self.autocast or not given or not role_of(func).is_pure:
            return None
        if any(self.value(value) is None for value in given):
            return None
        found = self._run(func, args, kwargs)
        results = [found] if isinstance(found, torch.Tensor) else list(found or ())
        if not results or any(result.numel() > LARGEST for result in results):
            return None
        self.settled = True
        return results

    def _real(self, value: Any) -> Any:
        """Arguments with what is known in place of fakes. Errors: TypeError for symbolic
        numbers."""
        if isinstance(value, torch.Tensor):
            known = self.value(value)
            return _blank(value) if known is None else known
        if isinstance(value, dict):
            return {name: self._real(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._real(item) for item in value]
        if type(value) not in PLAIN:
            raise TypeError(type(value))
        return value


def forget_values(fakes: Any) -> None:
    """Lets go of the real tensors that fakes, in lists and tuples or alone, were known to hold:
    graphs keep their fakes."""
    for fake in _tensors(fakes):
        fake.__dict__.pop(KNOWN, None)


def _written(role: Role, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return [value for key, value in given if role.written is None or key in role.written]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _are_numbers(args: Any) -> bool:
    """True for the arguments of `torch.div(5, 2)`."""
    return bool(args) and all(type(arg) in (int, float, bool, complex) for arg in args)


def _blank(fake: Any) -> torch.Tensor:
    """What stands for a fake of which an operator wants no values."""
    if not _is_small(fake):
        return torch.empty(0, dtype=fake.dtype, device=fake.device)
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def _is_small(fake: Any) -> bool:
    sizes = fake.shape
    return all(type(size) is int for size in sizes) and fake.numel() <= LARGEST
