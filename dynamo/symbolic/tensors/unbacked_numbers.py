"""Reading a tensor's values into Python, and what the program says of the numbers (`torch._check`).

What a tensor holds that is made of constants is known. With `config.capture_scalar_outputs` another
read is a node of the graph whose result is an unbacked number; without it, it ends the graph. A
check of such a number is a node that raises when it runs.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from dynamo.base.errors import Break, Signal
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.polyfill_checks import check_all
from dynamo.symbolic.shapes.unbacked import UnbackedNumber, by_value, is_unbacked
from dynamo.symbolic.tensors import torch_functions
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tables import restart_for_values
from dynamo.symbolic.tensors.tensor import TensorVar

MOST_READ = 256  # values of one `tolist()`
CHECKS = [torch._check, torch._check_index, torch._check_value, torch._check_type,
          torch._check_not_implemented]
SIZE_CHECKS: list[Any] = [torch._check_is_size, torch._constrain_as_size, torch.sym_constrain_range,
                          torch.sym_constrain_range_for_size]


class Check:
    """The target of a node: `function(condition)` with a message that is known already."""

    def __init__(self, function: Any, text: str, number: int) -> None:
        self.function, self.text = function, text
        self.__name__ = self.__qualname__ = f"check_{number}"
        self.__module__ = __name__

    def __call__(self, condition: bool) -> None:
        self.function(condition, lambda: self.text)


READERS: list[Any] = [torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__int__,
                      torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__complex__]


def known_rule(function: Any) -> None:
    """The row of a function that reads values, for tensors that are made of constants."""

    @first_rule(function, TensorVar)
    def read_known(tx: Frame, var: TensorVar) -> Var | None:
        known = tx.trace.world.constant_of(var.fake)
        if known is None:
            return None
        return tx.trace.constant(tx.trace.run_real(lambda: function(known)))


for _function in READERS:
    known_rule(_function)


@rule([torch.Tensor.item], TensorVar)
def item(tx: Frame, var: TensorVar) -> Var:
    return read(tx, var)


@rule([torch.Tensor.__index__], TensorVar)
def to_index(tx: Frame, var: TensorVar) -> Var:
    if var.fake.dtype.is_floating_point or var.fake.dtype is torch.bool:
        raise Break("item", repr(var))
    return read(tx, var)


WHOLE: list[Any] = [math.floor, math.ceil, math.trunc, round]


def whole_rule(function: Any) -> None:
    """The row of a function that makes an int of a float that only the running program knows."""

    @first_rule(function, UnbackedNumber)
    def whole(tx: Frame, number: Var, *rest: Var) -> Var | None:
        if rest or number.python_type() is bool:
            return None
        if number.python_type() is int:
            return number
        return by_value(tx.trace, function, int, number)


for _function in WHOLE:
    whole_rule(_function)


@first_rule(divmod, UnbackedNumber, Var)
def divide(tx: Frame, number: Var, divisor: Var) -> Var:
    parts = [tx.trace.call(tx, function, number, divisor)
             for function in (operator.floordiv, operator.mod)]
    return TupleVar(parts)


@rule([torch.Tensor.__int__], TensorVar)
def to_int(tx: Frame, var: TensorVar) -> Var | None:
    if var.fake.dtype.is_floating_point:
        return tx.trace.call(tx, int, read(tx, var))
    return to_index(tx, var)


@rule(operator.index, TensorVar)
def index_of(tx: Frame, var: TensorVar) -> Var:
    return tx.trace.call(tx, torch.Tensor.__index__, var)


@rule([torch.Tensor.__float__], TensorVar)
def to_float(tx: Frame, var: TensorVar) -> Var:
    if var.fake.dtype is torch.bool:
        raise Break("item", repr(var))
    return tx.trace.call(tx, float, read(tx, var))


@rule([torch.Tensor.tolist], TensorVar)
def tolist(tx: Frame, var: TensorVar) -> Var:
    """A list of as many reads as there are values."""
    restart_for_values(tx.trace, [var], buffers_only=True)
    if not tx.trace.symbols.unbacked.wanted():
        restart_for_values(tx.trace, [var])
        raise Break("item", repr(var))
    if var.fake.dim() == 0:
        return read(tx, var)
    count = tx.trace.call(tx, torch.Tensor.numel, var).as_constant()  # there are as many nodes
    if type(count) is not int or count > MOST_READ:
        raise Break("item", f"{var!r}: a list of more than {MOST_READ} values")
    if not var.fake.shape[0]:
        return ListVar([])
    rows = tx.trace.call(tx, torch.Tensor.unbind, var, ConstVar(0))
    return ListVar([tx.trace.call(tx, torch.Tensor.tolist, row) for row in rows.unpack(tx)])


def read(tx: Frame, var: TensorVar) -> Var:
    """The value of a tensor with one element."""
    trace = tx.trace
    restart_for_values(trace, [var], buffers_only=True)
    if not trace.symbols.unbacked.wanted() or var.fake.dtype.is_complex:
        restart_for_values(trace, [var])
        raise Break("item", repr(var))
    value = torch_functions.run_on_fakes(tx, torch.Tensor.item, [var.fake], {})
    if type(value) in (int, float, bool):
        return ConstVar(value)
    exact = not var.fake.dtype.is_floating_point
    known = trace.graph.operation("call_method", "item", (var.as_proxy(),), {}, value)
    trace.symbols.unbacked.keep_checks(torch.Tensor.item)
    return trace.symbols.unbacked.make(value, lambda: known, exact)


@rule(READERS)
def read_other(tx: Frame, var: Var, *args: Var) -> Var:
    raise Break("item", repr(var))


# -- checks ------------------------------------------------------------------------------------


def check_rule(function: Any) -> None:
    """The row of `torch._check` or one of its relatives."""

    @rule(function)
    def check(tx: Frame, cond: Var, message: Var = ConstVar(None)) -> Var:  # noqa: B008
        if is_unbacked(cond) and cond.python_type() is bool:
            return check_unbacked(tx, function, cond, message)
        if cond.python_type() is not bool:
            raise Break("call_of_unknown_function", f"{function.__name__}({cond!r})")
        if not cond.truth(tx):
            text = text_of(tx, message)
            tx.trace.run_real(lambda: function(False, None if text is None else lambda: text))
        return ConstVar(None)


@rule(torch._check_tensor_all)
def check_tensor(tx: Frame, cond: Var, message: Var = ConstVar(None)) -> Var:  # noqa: B008
    return check_all_of(tx, tx.trace.wrap(RuntimeError, None), cond, message)


@rule(torch._check_tensor_all_with)
def check_tensor_with(
    tx: Frame, error: Var, cond: Var, message: Var = ConstVar(None)  # noqa: B008
) -> Var:
    return check_all_of(tx, error, cond, message)


def check_all_of(tx: Frame, error: Var, cond: Var, message: Var) -> Var:
    """A branch, which the graph can test: no value is read."""
    is_mask = isinstance(cond, TensorVar) and cond.fake.dtype is torch.bool
    function = check_all if is_mask else torch._check_tensor_all_with
    return inline_polyfill(tx, function, [error, cond, message], {})


def text_of(tx: Frame, message: Var) -> str | None:
    """What `str(message())` gives; None for no message. A Break where it has an unbacked number."""
    if message.is_constant() and message.as_constant() is None:
        return None
    return str(tx.trace.call(tx, str, tx.call(message, [], {})).as_constant())


def check_unbacked(tx: Frame, function: Any, cond: Var, message: Var) -> Var:
    """A node that raises what eager raises; the trace goes on with the condition as known."""
    trace, text = tx.trace, text_of(tx, message)
    number = sum(isinstance(node.target, Check) for node in trace.graph.graph.nodes)
    target = function if text is None else Check(function, text, number)
    learn(tx, torch._check, cond)
    node = trace.graph.operation("call_function", target, (cond.as_proxy(),), {}, None)
    node.meta["checks"] = True
    return ConstVar(None)


def learn(tx: Frame, function: Any, var: Var) -> None:
    """The world knows from here on what the program has checked."""
    tx.trace.symbols.unbacked.may_raise([var.as_fake()])
    try:
        tensor_state(tx.trace).run_fake(function, var.as_fake())
    except Signal as error:
        raise Break("unknown_number", f"{function.__name__}: {error}") from error
    tx.trace.world.new_checks()


for _function in CHECKS:
    check_rule(_function)


def size_check_rule(function: Any) -> None:
    """The row of a function that says that an int is a size, or lies in a range."""
    learned: Any = is_size if function is torch._check_is_size else function

    @rule(function)
    def check(tx: Frame, size: Var, /, *args: Var, **kwargs: Var) -> Var:
        values = [arg.as_constant() for arg in args]
        keywords = {name: arg.as_constant() for name, arg in kwargs.items()}
        if not is_unbacked(size):
            value = size.as_constant()
            tx.trace.run_real(lambda: function(value, *values, **keywords))
            return ConstVar(None)
        if size.python_type() is not int or any(map(callable, values)):
            raise Break("call_of_unknown_function", f"{function.__name__}({size!r})")
        learn(tx, lambda fake: learned(fake, *values, **keywords), size)
        node = tx.trace.graph.operation(
            "call_function", function, (size.as_proxy(), *values), keywords, None)
        node.meta["checks"] = True
        return ConstVar(None)


def is_size(size: Any, message: None = None, *, max: int | None = None) -> None:
    """What `torch._check_is_size` says, without its warning."""
    torch._check(size >= 0)
    if max is not None:
        torch._check(size <= max)


for _function in SIZE_CHECKS:
    size_check_rule(_function)
