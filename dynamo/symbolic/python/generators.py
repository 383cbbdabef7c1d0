"""Generators made in the trace: a suspended symbolic frame with Python's generator protocol."""

from __future__ import annotations

import types
import weakref
from collections.abc import Hashable, Iterable
from typing import Any

from dynamo.base.errors import Break, RestartTrace
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.exceptions import note_passing
from dynamo.symbolic.python.iterators import EnumerateVar, FilterVar, IteratorVar, MapVar, ZipVar
from dynamo.symbolic.python.raising import as_exception, make_exception

# Code of a generator function that is traced in place of an iterator of C code -> the callable that
# makes the real one.
ITERATOR_MAKERS: dict[types.CodeType, Any] = {}
# Of these: iterators that read the same iterator as others do; no call makes such a one again.
SHARING: set[types.CodeType] = set()
# Classes of C code whose iterators ask what they read again where it has ended before.
POLLS_ENDED: set[Any] = set()


class GeneratorVar(IteratorVar):
    """A generator object.

    frame: the suspended frame; `frame.resume(tx, value, exception)` runs it to its next yield and
    raises ObservedException(StopIteration) at its end. maker: what makes the real iterator that the
    generator stands for, None for generators of the program. started: it can no longer be made
    again from its arguments. failed: it ended with an exception; a generator then has nothing
    more to give, but an iterator of C code goes on.
    """

    kind: type = types.GeneratorType

    def __init__(self, frame: Any) -> None:
        super().__init__()
        self.frame = frame
        self.maker = ITERATOR_MAKERS.get(frame.code)
        if self.maker is not None:
            self.kind = self.maker if isinstance(self.maker, type) else self.maker.__self__
        self.started = frame.code in SHARING
        self.finished = False
        self.failed = False
        self.running = False

    def describe(self) -> str:
        return f"a generator of {self.frame.code.co_qualname}"

    def children(self) -> Iterable[Var]:
        if not hasattr(self.frame, "alive"):
            return
        yield from self.frame.alive()
        function = self.frame.function
        if not self.started and self.maker is None and function is not None:
            yield function  # which makes it again

    def _resume(self, tx: Frame, value: Var | None, exception: Var | None) -> Var:
        if self.running:
            if self.maker is not None:  # C code that does not mind
                reason = Break("opaque_iterator", f"{self!r}, which goes through itself")
                raise RestartTrace(self.frame.created_at, reason)
            tx.trace.raise_exception(ValueError, "generator already executing")
        if self.finished:
            if exception is not None:
                raise ObservedException(exception)
            if self.failed or goes_on(self):
                reason = Break("opaque_iterator", f"{self!r}, which goes on after its end")
                raise RestartTrace(self.frame.created_at, reason)
            tx.trace.raise_exception(StopIteration)
        tx.trace.effects.tick()
        self.started = self.running = True
        try:
            result: Var = self.frame.resume(tx, value, exception)
        except ObservedException as error:
            self.finished = True
            if self.maker is not None:
                self.failed = not issubclass(error.value.python_type(), StopIteration)
            tx.trace.suspended.pop(self.frame, None)
            raise error
        finally:
            self.running = False
        if self.frame.has_cleanup():
            tx.trace.suspended[self.frame] = weakref.ref(self)
        else:
            tx.trace.suspended.pop(self.frame, None)
        return result

    def next_item(self, tx: Frame) -> Var:
        return self._resume(tx, None, None)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if self.maker is not None:
            return super().call_method(tx, name, args, kwargs)
        if name == "send" and len(args) == 1:
            none = args[0].is_constant() and args[0].as_constant() is None
            if not self.started and not none:
                message = "can't send non-None value to a just-started generator"
                tx.trace.raise_exception(TypeError, message)
            return self._resume(tx, args[0], None)
        if name == "throw" and 1 <= len(args) <= 3:
            return self._throw(tx, args)
        if name == "close" and not args:
            return self._close(tx)
        return super().call_method(tx, name, args, kwargs)

    def _throw(self, tx: Frame, args: list[Var]) -> Var:
        exception = as_exception(tx, args)
        if not self.started:
            self.finished = True
            note_passing(self.frame, exception)
        return self._resume(tx, None, exception)

    def _close(self, tx: Frame) -> Var:
        if self.finished or not self.started:
            tx.trace.effects.tick()
            self.finished = True
            return ConstVar(None)
        try:
            self._resume(tx, None, make_exception(tx.trace, GeneratorExit))
        except ObservedException as error:
            if issubclass(error.value.python_type(), GeneratorExit | StopIteration):
                return ConstVar(None)
            raise
        tx.trace.raise_exception(RuntimeError, "generator ignored GeneratorExit")

    def close_dropped(self, tx: Frame) -> None:
        """What happens when the program lets go of the generator: its `finally` blocks run."""
        self.started = True
        try:
            self._close(tx)
        except ObservedException as error:
            detail = f"{self!r}: {error.value!r} when it is closed"
            raise Break("escaping_generator", detail) from error

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name in ("gi_frame", "gi_code", "gi_running", "gi_yieldfrom"):
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return super().get_attr(tx, name)

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


def goes_on(var: Var) -> bool:
    """True where an iterator may give more items after it has ended."""
    if not isinstance(var, IteratorVar):
        return hasattr(var.python_type(), "__next__")  # a class of the program
    if isinstance(var, GeneratorVar):
        if var.maker not in POLLS_ENDED:
            return False
        args, kwargs = var.frame.arguments
        return any(map(goes_on, (*args, *kwargs.values())))
    reads = isinstance(var, EnumerateVar | FilterVar | MapVar | ZipVar)
    return reads and any(map(goes_on, var.children()))
