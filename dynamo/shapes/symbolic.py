"""Fake tensors with symbolic sizes: a world with the face of `FakeWorld`, on torch's FakeTensor.

In: real tensors, with an expression for each size and stride. Out: fakes whose sizes are SymInts,
and the list of what torch's kernels assumed of them (`assumptions`), as Python expressions over the
symbols' names. Importing this module costs seconds, so that only traces that need symbols do.

Exceptions: `DataDependent` and `NoFakeKernel` as for `FakeWorld`; `NotSymbolic` where an operation
failed that may work with static sizes; `Unprintable` for assumptions that no guard can express;
`Undecided` where an operation needs a number that is known only when the program runs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_unbacked_symbols,
    statically_known_true,
)
from torch.nn import functional
from torch.utils._sympy import functions as fn

from dynamo.base.config import config
from dynamo.base.errors import Signal
from dynamo.base.ragged_sizes import nested_key
from dynamo.shapes.cells import CELLS
from dynamo.shapes.creation import CREATIONS, MADE_BEFORE
from dynamo.shapes.fake import (
    DataDependent,
    NoFakeKernel,
    NotSymbolic,
    Undecided,
    Unprintable,
    give_history,
)
from dynamo.shapes.interpolate import interpolate
from dynamo.shapes.recurrent import STEPS
from dynamo.shapes.row_norm import rms_norm
from dynamo.shapes.symbolic_mode import Place, SymbolicMode

LOG = logging.getLogger("torch._subclasses.fake_tensor")
SYMBOLIC = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)


class SymbolicWorld:
    """The fakes of one trace whose sizes are expressions over named symbols."""

    is_symbolic = True

    def __init__(self) -> None:
        self.env = ShapeEnv(
            allow_scalar_outputs=config.capture_scalar_outputs,
            allow_dynamic_output_shape_ops=config.capture_dynamic_output_shape_ops)
        self.mode = SymbolicMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.mode.cache_enabled = False  # a hit would not repeat what the kernel assumed
        self.symbols: dict[str, Any] = {}
        self._names: dict[sympy.Symbol, str] = {}
        self._from_real: dict[int, tuple[torch.Tensor, Any]] = {}
        self._read = 0
        self._ragged: dict[int, Any] = {}
        self._checked: set[str] = set()
        self.observed = self.mode.observed
        self.constants = self.mode.constants

    # -- symbols --------------------------------------------------------------------------------

    def size(self, name: str, value: int) -> Any:
        """A new size, at least 2 in all calls."""
        return self._symbol(name, value, self.env.create_symbol(
            value, Place(name), DimDynamic.DYNAMIC))

    def number(self, name: str, value: int | float) -> Any:
        """A new int or float that may be anything."""
        return self._symbol(name, value, self.env.create_unspecified_symbol(
            value, Place(name), DimDynamic.DYNAMIC))

    def _symbol(self, name: str, value: int | float, symbol: Any) -> Any:
        self._names[symbol] = name
        make: Any = self.env.create_symintnode if type(value) is int else (
            self.env.create_symfloatnode)
        self.symbols[name] = make(symbol, hint=value, source=Place(name))
        return self.symbols[name]

    def fixed_value(self, name: str) -> int | None:
        """The value of a symbol of which the trace has assumed one; None for the others."""
        value = self.symbols[name].node.maybe_as_int()
        return None if value is None else int(value)

    def text(self, value: Any) -> str:
        """The expression of a SymInt. Errors: Unprintable."""
        return self._print(value.node.expr)

    def text_of(self, expression: Any) -> str:
        """A SymPy expression in words of the guards. Errors: Unprintable."""
        return self._print(expression)

    def assumptions(self) -> list[str]:
        """What was assumed since the last call, as expressions. Errors: Unprintable."""
        guards, self._read = self.env.guards[self._read:], len(self.env.guards)
        return [self._print(guard.expr) for guard in guards if not self.is_ragged(guard.expr)]

    def is_ragged(self, expression: Any) -> bool:
        """True for what is assumed of a ragged size, which is always so: it is no number, and
        equals those of the same offsets."""
        return not self.mode.nested_ints.isdisjoint(expression.free_symbols)

    def ragged_size(self, fake: Any, number: torch.SymInt) -> Any:
        """The ragged size of nested tensors with these offsets (or lengths), that of a real one."""
        if fake.nested_int_memo is None:
            key = nested_key(number)[0]
            if key not in self._ragged:
                self._ragged[key] = self.mode.create_symbolic_nested_int(nt_tensor_id=key)
            fake.nested_int_memo = self._ragged[key]
        return fake.nested_int_memo

    def _print(self, expression: Any) -> str:
        try:
            return self._words(expression)
        except KeyError:
            names = [self._names[s] for s in expression.free_symbols if s in self._names]
            raise Unprintable(expression, names) from None

    def _words(self, expression: Any) -> str:
        if isinstance(expression, sympy.Integer):
            return f"({int(expression)})"
        if isinstance(expression, sympy.Symbol):
            return self._names[expression]
        if expression in (sympy.true, sympy.false):
            return str(bool(expression))
        return WORDS[type(expression)](*map(self._words, expression.args))

    # -- numbers that are known only when the program runs ----------------------------------------

    def unbacked_size(self, name: str) -> Any:
        """A size of an input that no decision may look at."""
        value = self.env.create_unbacked_symint(source=Place(name))
        self.name_unbacked(value, name)
        self.symbols[name] = value
        self.run(torch._check, value >= 0)
        self.new_checks()
        return value

    def make_unbacked(self, kind: type) -> Any:
        """An int or float of which nothing is known."""
        with self.env.ignore_fresh_unbacked_symbols():
            if kind is int:
                return self.env.create_unbacked_symint()
            return self.env.create_unbacked_symfloat()

    def unbacked_in(self, value: Any) -> list[Any]:
        """The symbols in a number or tensor whose values only the running program knows."""
        if not isinstance(value, SYMBOLIC):
            return []
        return sorted(free_unbacked_symbols(value), key=str)

    def single_unbacked(self, value: Any) -> Any:
        """The symbol that a SymInt consists of, if it is such a one without a name so far."""
        symbol = value.node.expr if isinstance(value, torch.SymInt) else None
        is_new = isinstance(symbol, sympy.Symbol) and symbol not in self._names
        return symbol if is_new and free_unbacked_symbols(value) else None

    def name_unbacked(self, value: Any, name: str) -> None:
        """From now on the symbol has this name."""
        self._names[value.node.expr] = name
        self.symbols[name] = value

    def names_in(self, expression: Any) -> list[str]:
        """The names of the symbols in a SymPy expression; "" for a symbol that has none."""
        return sorted(self._names.get(symbol, "") for symbol in expression.free_symbols)

    def known(self, condition: Any) -> bool | None:
        """What follows from the checks so far; None where either may be."""
        if not isinstance(condition, torch.SymBool):
            return bool(condition)
        if statically_known_true(condition):
            return True
        return False if statically_known_true(torch.sym_not(condition)) else None

    def new_checks(self) -> list[Any]:
        """What operations since the last call need of unbacked numbers, as SymPy expressions.

        Ranges of numbers that the operation itself has made are left out: they hold.
        """
        found = []
        for checks in self.env.deferred_runtime_asserts.values():
            for check in checks:
                if str(check.expr) in self._checked:
                    continue
                self._checked.add(str(check.expr))
                if not self._is_range_of_new(check.expr):
                    found.append(check.expr)
        return found

    def _is_range_of_new(self, check: Any) -> bool:
        return not isinstance(check, sympy.Eq | sympy.Ne) and not any(
            symbol in self._names for symbol in free_unbacked_symbols(check))

    def least(self, value: Any) -> Any:
        """What a symbolic number is at least, as a number of SymPy."""
        return self.env.bound_sympy(value.node.expr).lower

    def spell(self, check: Any) -> str:
        """An expression over the names that are known; other symbols stay."""
        return str(check.xreplace({s: sympy.Symbol(name) for s, name in self._names.items()}))

    # -- fakes ----------------------------------------------------------------------------------

    def make(
        self, real: torch.Tensor, sizes: Sequence[Any], strides: Sequence[Any]
    ) -> Any:
        """The fake of a real tensor with these sizes and strides; the same one for one object."""
        known = self._from_real.get(id(real))
        if known is not None:
            return known[1]
        if real.layout is not torch.strided or real.is_quantized or real.is_conj() or real.is_neg():
            raise NotSymbolic(f"a tensor of layout {real.layout}")
        if torch._C._functorch.is_functorch_wrapped_tensor(real):
            raise NoFakeKernel("from_real", "a tensor inside a torch.func transform")

        def blank() -> Any:
            with self.mode, torch.no_grad():
                return torch.empty_strided(
                    tuple(sizes), tuple(strides), dtype=real.dtype, device=real.device)

        fake = give_history(real, blank)
        if isinstance(real, torch.nn.Parameter):
            fake._is_param = True
        self._from_real[id(real)] = (real, fake)
        return fake

    def forget_reals(self) -> None:
        """Lets go of the real tensors: fakes keep their world alive."""
        self._from_real.clear()

    def from_real(self, tensor: torch.Tensor) -> Any:
        """The fake of a real tensor that has no symbolic size."""
        if isinstance(tensor, FakeTensor):
            return tensor
        return self.make(tensor, tensor.shape, tensor.stride())

    def constant_of(self, fake: Any) -> torch.Tensor | None:
        """The value of a fake that was made of constants of the program: who asks decides by it."""
        known = self.constants.value(fake)
        self.constants.times_read += known is not None
        return known

    # -- running --------------------------------------------------------------------------------

    def __enter__(self) -> SymbolicWorld:
        self.mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)` with this world active."""
        # not to be seen from inside of an operator
        self.constants.autocast = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        try:
            with self.mode, enable_python_dispatcher(), quiet():
                return OWN_STEPS.get(function, function)(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise DataDependent(error.func) from error
        except GuardOnDataDependentSymNode as error:
            raise Undecided(error.cond, self.names_in(error.cond)) from error
        except (UnsupportedFakeTensorException, UnsupportedOperatorException) as error:
            raise NotSymbolic(f"{function}: {error}") from error
        except Signal:
            raise
        except Exception as error:
            raise NotSymbolic(f"{function}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch logs what its kernels raise; here it may be an error that the program handles."""
    before, LOG.disabled = LOG.disabled, True
    try:
        yield
    finally:
        LOG.disabled = before


def _chain(symbol: str) -> Callable[..., str]:
    return lambda *words: f"({f' {symbol} '.join(words)})"


def _call(name: str) -> Callable[..., str]:
    return lambda *words: f"{name}({', '.join(words)})"


RESIZE = functools.partial(interpolate, only_sizes=True)
# What runs in steps of our own, since torch's would fix the sizes.
OWN_STEPS: Mapping[Any, Callable[..., Any]] = {
    functional.interpolate: RESIZE, functional.upsample: RESIZE,
    functional.rms_norm: rms_norm, torch.rms_norm: rms_norm, **CREATIONS, **MADE_BEFORE, **STEPS,
    **CELLS,
}  # fmt: skip

# SymPy's classes in the language of `dynamo.guards.shape_code`.
WORDS: Mapping[type, Callable[..., str]] = {
    sympy.Add: _chain("+"), sympy.Mul: _chain("*"), sympy.Pow: _chain("**"),
    sympy.Eq: _chain("=="), sympy.Ne: _chain("!="), sympy.StrictLessThan: _chain("<"),
    sympy.LessThan: _chain("<="), sympy.StrictGreaterThan: _chain(">"),
    sympy.GreaterThan: _chain(">="), sympy.And: _chain("and"), sympy.Or: _chain("or"),
    sympy.Not: lambda word: f"(not {word})", sympy.Abs: _call("abs"),
    sympy.Max: _call("max"), sympy.Min: _call("min"), fn.Max: _call("max"), fn.Min: _call("min"),
    fn.FloorDiv: _chain("//"), fn.CleanDiv: _chain("//"), fn.Mod: _chain("%"),
    fn.PythonMod: _chain("%"), fn.PowByNatural: _chain("**"),
    fn.Identity: lambda word: word,
    fn.CeilDiv: lambda a, b: f"(-(-{a} // {b}))",
    fn.ModularIndexing: lambda a, b, c: f"(({a} // {b}) % {c})",
}  # fmt: skip
