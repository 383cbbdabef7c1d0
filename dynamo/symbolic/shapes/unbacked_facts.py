"""What one trace knows of numbers that only the running program knows.

In: symbolic values of torch's, with the nodes that compute them. Out: Vars for them, graph nodes
for expressions over them, and breaks: where a decision needs such a number, and where an operation
would be right only for some values of it that nobody has checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import fx

from dynamo.base import logs
from dynamo.base.config import config
from dynamo.base.errors import Break, RestartTrace
from dynamo.shapes.fake import Undecided, Unprintable
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.unbacked import UnbackedNumber

# Operations that raise by themselves where a size does not fit, in eager too.
RAISES = frozenset(
    """zeros ones empty full rand randn randint randperm arange eye new_zeros new_ones new_empty
    new_full zeros_like narrow repeat split split_with_sizes topk pad item tolist mm bmm linear
    cross_entropy nll_loss index_copy_ cat stack select""".split()
)
# The same for sizes that are at least 2: one of 1 would be repeated.
RAISES_BUT_ONE = frozenset(
    """add sub subtract rsub mul multiply div divide true_divide truediv floor_divide floordiv mod
    remainder fmod pow radd rmul rtruediv rfloordiv rmod rpow iadd isub imul itruediv ifloordiv ipow
    add_ sub_ mul_ div_ pow_ copy_ eq ne lt le gt ge maximum minimum fmax fmin where and or xor rand
    ror rxor logical_and logical_or logical_xor atan2 hypot logaddexp lerp lerp_ addcmul addcmul_
    addcdiv addcdiv_ masked_fill masked_fill_""".split()
)
# The same for sizes that are at least 0; for these -1 has a meaning of its own.
RAISES_BUT_NEGATIVE = frozenset(("view", "reshape", "expand", "unflatten", "broadcast_to"))


class UnbackedFacts:
    """See the module.

    origins: per name, how the graph gets it: a node, or a dimension of a node's result.
    places: the line that made it. least: what it is at least. declared: sizes of inputs that the
        user declared unbacked.
    """

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self.origins: dict[str, fx.Node | tuple[fx.Node, int]] = {}
        self.places: dict[str, str] = {}
        self.least: dict[str, Any] = {}
        self.declared: set[str] = set()

    # -- making ---------------------------------------------------------------------------------

    def wanted(self) -> bool:
        """True where `item()` gives a number."""
        return config.capture_scalar_outputs and self.possible()

    def possible(self) -> bool:
        """True where a graph can hold such numbers; a static trace begins again for them."""
        context = self.trace.context
        if context is None or context.static_sizes:
            return False
        if torch._C._functorch.get_dynamic_layer_stack_depth():
            return False
        if not self.trace.world.is_symbolic:
            context.symbolic = True
            raise RestartTrace(None)
        return True

    def restart_for_shapes(self) -> None:
        """A result's size depends on data: the trace begins again where the graph may have such."""
        context = self.trace.context
        if config.capture_dynamic_output_shape_ops and context is not None:
            if not self.trace.world.is_symbolic and not context.static_sizes:
                context.symbolic = True
                raise RestartTrace(None)

    def make(self, value: Any, make_node: Callable[[], fx.Node], exact: bool = True) -> Var:
        """The Var of a symbolic value; a constant where its value follows from what is known.

        exact: False for what is made of floats, of which nothing follows (nan, rounding).
        """
        constant = constant_of(self.trace.world, value) if exact else None
        if constant is not None:
            return ConstVar(constant)
        node = make_node()
        symbol = self.trace.world.single_unbacked(value)
        if symbol is not None:
            self._name(value, node)
        return UnbackedNumber(self.trace, value, node, exact)

    def bind_sizes(self, node: fx.Node, fake: Any) -> None:
        """Names the sizes of an operation's result that only the running program knows."""
        world = self.trace.world
        if not world.is_symbolic or not isinstance(fake, torch.Tensor):
            return
        for axis, size in enumerate(fake.shape):
            if world.single_unbacked(size) is not None:
                self._name(size, (node, axis))

    def _name(self, value: Any, origin: fx.Node | tuple[fx.Node, int]) -> None:
        name = f"u{len(self.origins)}"
        self.trace.world.name_unbacked(value, name)
        self.least[name] = self.trace.world.least(value)
        self.origins[name] = origin
        place = self.places[name] = self.trace.symbols.place()
        logs.log("dynamic").emit(
            lambda: f"{name} is known only when the program runs, met at {place}")

    # -- nodes ----------------------------------------------------------------------------------

    def node(self, value: Any) -> Any:
        """The graph node that computes an expression of ints."""
        if not isinstance(value, torch.SymInt):
            raise Break("unknown_number", f"{value} is needed where the graph does not have it")
        try:
            return self.trace.symbols.node(self.trace.world.text(value))
        except Unprintable as error:
            raise Break("unknown_number", str(error)) from error

    def input(self, name: str) -> fx.Node:
        """The node of a name."""
        origin = self.origins[name]
        node = origin[0] if isinstance(origin, tuple) else origin
        if node._erased:
            raise Break("unknown_number", f"{name} was made in another graph")
        if not isinstance(origin, tuple):
            return origin
        size = self.trace.world.symbols[name]
        return self.trace.graph.operation("call_method", "size", origin, {}, size)

    # -- deciding -------------------------------------------------------------------------------

    def decide(self, number: UnbackedNumber) -> bool:
        """The truth of a number; a break where only the running program knows it."""
        fake = number.fake
        condition = fake if isinstance(fake, torch.SymBool) else fake != 0
        answer = self.trace.world.known(condition) if number.exact else None
        if answer is None:
            self.refuse(condition)
        return answer

    def refuse(self, condition: Any) -> NoReturn:
        """A decision that needs an unbacked number: a break, or an error where it was declared."""
        expression = condition.node.expr
        self._refuse(expression, self.trace.world.names_in(expression))

    def undecided(self, error: Undecided) -> NoReturn:
        """An operation needed to know an unbacked number."""
        self._refuse(error.expression, error.names)

    def _refuse(self, expression: Any, names: Iterable[str]) -> NoReturn:
        symbols, text = self.trace.symbols, self.words(expression)
        for name in names:
            if name in self.declared:
                symbols.violate_unbacked(symbols.facts[name], text)
        raise Break("unknown_number_decides", text)

    # -- checks ---------------------------------------------------------------------------------

    def refuse_negative(self, function: Any, args: list[Any]) -> None:
        """`view(n, -1)` and the like: an unknown n that may be -1 is no size."""
        name = getattr(function, "__name__", "").strip("_")
        if not self.trace.world.is_symbolic or name not in RAISES_BUT_NEGATIVE:
            return
        for value in flat(args):
            if isinstance(value, torch.SymInt) and self.trace.world.unbacked_in(value):
                if self.trace.world.known(value >= 0) is not True:
                    self.unchecked([(value >= 0).node.expr])  # type: ignore[attr-defined]

    def settle_indices(self, function: Any, args: list[Any]) -> list[Any]:
        """`x[n]` on fakes: any index gives the same sizes; the operation checks the range."""
        name = getattr(function, "__name__", "").strip("_")
        if not self.trace.world.is_symbolic or name not in ("getitem", "setitem"):
            return args
        keys = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not any(isinstance(key, torch.SymInt) for key in keys):
            return args
        sizes = args[0].shape if isinstance(args[0], torch.Tensor) else ()
        plain = len(keys) <= len(sizes) and all(
            isinstance(key, int | torch.SymInt | slice) and type(key) is not bool for key in keys)
        settled = tuple(
            self._settle(key, sizes[axis] if plain else None) for axis, key in enumerate(keys))
        return [args[0], settled if isinstance(args[1], tuple) else settled[0], *args[2:]]

    def _settle(self, key: Any, size: Any) -> Any:
        """0 for an unknown index, and for a symbolic one that is in the range of the size."""
        if not isinstance(key, torch.SymInt):
            return key
        if self.trace.world.unbacked_in(key):
            return 0
        if size is None or self.trace.world.unbacked_in(size):
            return key
        inside = bool(key >= -size) and bool(key < size)
        self.trace.symbols.keep_assumptions()
        return 0 if inside else key

    def may_raise(self, values: list[Any], repeatable: bool = False) -> bool:
        """True for arguments of unknown value or size: the operation may raise when the graph runs.

        Such an operation stays in the graph, whoever needs its result. repeatable: the part runs
        again without the compiler where it raises (see `cut_where_caught`). Errors: else Break
        where the program would catch what it raises.
        """
        if not (self.origins or self.declared):
            return False
        if not any(self.trace.world.unbacked_in(value) for value in flat(values)):
            return False
        if not repeatable and any(map(catches, self.trace.frames)):
            raise Break("unknown_number_unchecked", "it does not raise, inside of a try statement")
        return True

    def keep_checks(self, function: Any) -> None:
        """After an operation: what it assumed of unbacked numbers must be what it checks itself."""
        world = self.trace.world
        if not world.is_symbolic:
            return
        checks = world.new_checks()
        if not checks:
            return
        name = getattr(function, "__name__", "").strip("_")
        if name not in RAISES | RAISES_BUT_NEGATIVE:
            repeats = name not in RAISES_BUT_ONE
            left = [check for check in checks
                    if (repeats or not self._is_of_many(check)) and not self._guard(check)]
            if left:
                self.unchecked(left)

    def _is_of_many(self, check: Any) -> bool:
        """True for two sizes that must be equal, each at least 2 whatever the check says."""
        if type(check).__name__ != "Equality":
            return False
        return all(map(self._is_many, check.args))

    def _is_many(self, side: Any) -> bool:
        if side.is_Integer:
            return bool(side >= 2)
        name = self.trace.world.spell(side)
        fact = self.trace.symbols.facts.get(name)
        if fact is not None:  # a size of an input is at least 2: see `SymbolicWorld.size`
            return fact.what == "size" and name not in self.declared
        return bool(self.least.get(name, 0) >= 2)

    def unchecked(self, checks: list[Any]) -> NoReturn:
        raise Break("unknown_number_unchecked", " and ".join(map(self.words, checks)))

    def words(self, check: Any) -> str:
        """A condition in words of the program, and where its unbacked numbers come from."""
        names = self.trace.world.names_in(check)
        if "" in names:
            return "a value of a tensor"
        try:
            text = self.trace.symbols.spell(self.trace.world.text_of(check))
        except Unprintable:
            text = self.trace.world.spell(check)
        places = [f"{name} is of {self.places[name]}" for name in names if name in self.places]
        return "; ".join([text, *places])

    def _guard(self, check: Any) -> bool:
        """Guards a check of nothing but sizes of inputs (those that are declared unbacked)."""
        symbols, world = self.trace.symbols, self.trace.world
        if not symbols.facts.keys() >= set(world.names_in(check)):
            return False
        try:
            text = world.text_of(check)
        except Unprintable:
            return False
        if not symbols.evaluate(text):
            self._fix(check)
            symbols.violate_unbacked(symbols.facts[world.names_in(check)[0]], self.words(check))
        symbols.assume(text)
        symbols.check_fixed()
        return True


    def _fix(self, check: Any) -> None:
        """Traces again, with constants for unbacked sizes that were assumed to be equal to others,
        which they are not in this call: broadcasting, or an error of the program."""
        symbols, names = self.trace.symbols, self.trace.world.names_in(check)
        if type(check).__name__ == "Equality" and not symbols.strict.intersection(names):
            symbols.context.fixed |= {symbols.facts[name] for name in names}
            raise RestartTrace(None)


def catches(frame: Frame) -> bool:
    """True inside of a try statement; a `with` block passes exceptions on."""
    decoded, index = frame.decoded, frame.current.index
    while (handler := decoded.handlers[index]) is not None:
        index = handler.target
        ops = [item.op for item in decoded.instructions[index : index + 2]]
        if ops[0] == "PUSH_EXC_INFO" and ops[1] != "WITH_EXCEPT_START":
            return True
    return False


def constant_of(world: Any, value: Any) -> int | bool | None:
    """The value of a symbolic int or bool where it is known."""
    if isinstance(value, torch.SymInt):
        found = value.node.maybe_as_int()
        return None if found is None else int(found)
    return world.known(value) if isinstance(value, torch.SymBool) else None


def flat(args: list[Any]) -> list[Any]:
    """The items of nested sequences and slices."""
    found: list[Any] = []
    for arg in args:
        if isinstance(arg, slice):
            arg = (arg.start, arg.stop, arg.step)
        found += flat(list(arg)) if isinstance(arg, list | tuple) else [arg]
    return found
