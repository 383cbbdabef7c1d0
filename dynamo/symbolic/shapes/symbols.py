"""The symbols of one trace: which numbers and sizes are symbolic, and what was assumed of them.

In: the facts that had several values so far (`CompileContext.changed`). Out: names for them (s0,
s1, ...), SHAPE guards on expressions over these names, graph nodes that compute such expressions,
and log lines that say which line of the program fixed which number.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import torch
from torch import fx

from dynamo.base import logs
from dynamo.base.config import config
from dynamo.base.errors import Break, ConstraintViolation, RestartTrace
from dynamo.guards.explain import failures
from dynamo.guards.shape_code import ROUNDINGS, Fact, ShapeFacts
from dynamo.guards.sources import Scope, Source
from dynamo.shapes.fake import NotSymbolic, Unprintable
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.places import user_line
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.numbers import (
    CURVES,
    LARGEST_INT,
    UNGUARDED,
    SymbolicNumber,
    is_guardable,
)
from dynamo.symbolic.shapes.sizes import is_argument, is_named_number, is_schedule
from dynamo.symbolic.shapes.unbacked import UnbackedNumber
from dynamo.symbolic.shapes.unbacked_facts import UnbackedFacts

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "min": min, "max": max, "power": operator.pow, "round": round, **ROUNDINGS,
    **{name: getattr(math, name) for name in CURVES},
}  # fmt: skip
SYMBOLIC_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "min": lambda *numbers: functools.reduce(torch.sym_min, numbers),
    "max": lambda *numbers: functools.reduce(torch.sym_max, numbers),
}  # fmt: skip
# Functions of which only the type of a number decides what comes out: size, strides and dtype.
VALUE_FREE = frozenset(
    """add sub mul div truediv true_divide floor_divide floordiv divide multiply subtract remainder
    mod fmod pow rsub eq ne lt le gt ge clamp clip clamp_min clamp_max addcmul addcdiv lerp where
    masked_fill fill full_like addmm baddbmm leaky_relu
    iadd isub imul itruediv ifloordiv imod ipow fused_adam fused_adamw fused_sgd
    fused_adagrad""".split()
)


# Functions whose floats are no sizes, while their ints may be.
FLOAT_FREE = frozenset(
    """full new_full dropout alpha_dropout feature_dropout layer_norm group_norm batch_norm
    instance_norm rms_norm scaled_dot_product_attention elu celu hardtanh softplus threshold
    hardshrink softshrink normal uniform bernoulli exponential nan_to_num rrelu smooth_l1_loss
    huber_loss linspace logspace fft_fftfreq kaiser_window setitem normalize cross_entropy nll_loss
    norm vector_norm index_fill isclose cosine_similarity pairwise_distance gumbel_softmax
    poisson_nll_loss gaussian_nll_loss margin_ranking_loss triplet_margin_loss
    cosine_embedding_loss hinge_embedding_loss local_response_norm""".split()
)


# Functions whose results tell where in its storage a tensor begins.
OFFSET_READERS = frozenset("storage_offset as_strided as_strided_copy as_strided_scatter".split())


TRANSFORM = "a transform of torch.func"
UNKNOWN_TO_TORCH = frozenset(FUNCTIONS) - {"abs", "min", "max"}
ADVICE = "Use maybe_mark_dynamic, or change the program so that the size does not matter."


def is_value_free(function: Any) -> bool:
    """True where the fake result is the same for all values of the numbers among the arguments.

    >>> import torch
    >>> is_value_free(torch.Tensor.add_), is_value_free(torch.zeros)
    (True, False)
    """
    name = getattr(function, "__name__", "").strip("_").removeprefix("foreach_")
    return name in VALUE_FREE or (name[:1] in ("r", "i") and name[1:] in VALUE_FREE)


def has_other_transform() -> bool:
    """Inside of a transform of torch.func that is no vmap."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() != torch._C._functorch.TransformType.Vmap for level in levels)


class InputTensor(Protocol):
    """A tensor from outside, which becomes an input of the graph when it is first asked for."""

    @property
    def node(self) -> fx.Node: ...


class Symbols:
    """See the module.

    facts: what each name stands for; values: what it is in this trace.
    tensors: tensors with symbolic sizes by source. ducks: the first name of each symbolic size, by
    its value here and the one before.
    declared: sizes that the user declared dynamic. strict: unbacked ones that may not be fixed.
    dims: the first name of each declared Dim.
    derived: names of ints that are rounded floats, for torch, which sees no more than an int.
    gave_hint: whether the operation at hand got a number that is another one in later calls.
    """

    def __init__(self, trace: Evaluation, context: Any) -> None:
        self.trace = trace
        self.context = context
        self.changed: Mapping[Fact, int | float | None] = getattr(context, "changed", {})
        self.parts: set[Source] = set()  # inner tensors of wrappers among the arguments
        self.learns = bool(getattr(context, "learns", False))
        self.everything = bool(getattr(context, "everything_dynamic", False))
        self.facts: dict[str, Fact] = {}
        self.values: dict[str, int | float] = {}
        self.tensors: dict[Source, InputTensor] = {}
        self.ducks: dict[tuple[int, int | float | None], str] = {}
        self.declared: dict[str, Fact] = {}
        self.strict: set[str] = set()
        self.dims: dict[str, str] = {}
        self.derived: dict[str, str] = {}
        self._names: dict[Fact, str] = {}
        self._nodes: dict[str, fx.Node] = {}
        self._said: set[str] = set()
        self._hints_wanted = self._float_hints_wanted = False
        self.gave_hint = False
        self.unbacked = UnbackedFacts(trace)

    # -- making -------------------------------------------------------------------------------

    def wrap_number(self, value: Any, source: Source | None) -> Var | None:
        """The symbolic number of an int or float of the program; None where it is a constant."""
        if source is None or not self._is_wanted(value, source):
            return None
        self.trace.guard("TYPE", source, type(value))
        name = self.name(Fact(source, "value"), value)
        return SymbolicNumber(name, value, self.trace, source)

    def has_changed(self, source: Source) -> bool:
        """True for a value that had several values so far, and is no constant of the graph."""
        fact = Fact(source, "value")
        return fact in self.changed and fact not in self.context.fixed

    def number_from(self, source: Source, value: int | float) -> SymbolicNumber:
        """The symbolic number that a source gives."""
        return SymbolicNumber(self.name(Fact(source, "value"), value), value, self.trace, source)

    def _is_wanted(self, value: Any, source: Source) -> bool:
        kind = type(value)
        if kind is int:
            if is_named_number(source):
                return Fact(source, "value") not in self.context.fixed
            if config.specialize_int or abs(value) > LARGEST_INT:
                return False
            if self.everything and is_argument(source):
                return Fact(source, "value") not in self.context.fixed
        elif kind is not float or config.specialize_float:
            return False
        fact = Fact(source, "value")
        wanted = fact in self.changed or self.learns and is_schedule(kind, source)
        return wanted and fact not in self.context.fixed

    def name(self, fact: Fact, value: int | float) -> str:
        """The name of a fact; made at its first use."""
        name = self._names.get(fact)
        if name is None:
            name = self._names[fact] = f"s{len(self._names)}"
            self.facts[name], self.values[name] = fact, value
            logs.log("dynamic").emit(
                lambda: f"{name} is {fact.text()}, now {value}, met at {self.place()}")
        return name

    def make(self, text: str, hint: int | float) -> Var:
        """The number that an expression stands for."""
        if type(hint) is int and self._is_known_to_world(text):
            return self.wrap_symbolic(self.symbolic_value(text))
        return SymbolicNumber(text, hint, self.trace)

    def wrap_symbolic(self, value: Any) -> Var:
        """The Var of a SymInt (SymBool, SymFloat) that an operation gave, or of a number."""
        if type(value) is int:
            return ConstVar(value)
        if self.trace.world.unbacked_in(value):
            return UnbackedNumber(self.trace, value)
        if not isinstance(value, torch.SymInt):
            fixed = value if isinstance(value, int | float) else self._settle(value)
            self.keep_assumptions()
            return ConstVar(fixed)
        constant = value.node.maybe_as_int()
        if constant is not None:
            return ConstVar(constant)
        try:
            text = self.trace.world.text(value)
        except Unprintable as error:
            self.give_up(error)
        return SymbolicNumber(text, int(value.node.hint), self.trace)

    def _settle(self, value: Any) -> bool | float:
        return bool(value) if isinstance(value, torch.SymBool) else float(value)

    # -- the symbolic world -----------------------------------------------------------------------

    def symbolic_value(self, text: str) -> Any:
        """The expression over torch's symbols (a plain int where it has become one)."""
        if not self._is_known_to_world(text):
            text = self._derive(text)
        world, names = self.trace.world, names_in(text)
        for name in names:
            if name not in world.symbols:
                if self.facts[name].what == "value":
                    world.number(name, self.values[name])
                else:  # a second name of a size, see duck shaping
                    value = self.values[name]
                    first = next(first for duck, first in self.ducks.items() if duck[0] == value)
                    world.symbols[name] = world.symbols[first]
        scope = {name: world.symbols[name] for name in names}
        return eval(text, {"__builtins__": {}}, {**SYMBOLIC_FUNCTIONS, **scope})

    def _derive(self, text: str) -> str:
        """A name for an int that is made of floats."""
        known = next((name for name, old in self.derived.items() if old == text), None)
        if known is not None:
            return known
        name = f"d{len(self.derived)}"
        self.derived[name], self.values[name] = text, self.evaluate(text)
        self.trace.world.number(name, self.values[name])
        return name

    def expand(self, text: str) -> str:
        """The expression over facts alone."""
        if not any(name in text for name in self.derived):
            return text
        tree = ast.parse(text, mode="eval")
        return ast.unparse(Expansion(self.derived).visit(tree))

    def _is_known_to_world(self, text: str) -> bool:
        """True for expressions that torch's symbols take part in: of ints, without `/`."""
        if not self.trace.world.is_symbolic:
            return False
        if not all(type(self.values[name]) is int for name in names_in(text)):
            return False
        return not any(
            isinstance(node, ast.Div)
            or type(getattr(node, "value", 0)) is float
            or (isinstance(node, ast.Name) and node.id in UNKNOWN_TO_TORCH)
            for node in ast.walk(ast.parse(text, mode="eval"))
        )

    def keep_assumptions(self) -> None:
        """Guards what the operations since the last call assumed of symbolic sizes."""
        world = self.trace.world
        if not world.is_symbolic:
            return
        try:
            texts = world.assumptions()
        except Unprintable as error:
            self.give_up(error)
        for text in texts:
            logs.log("dynamic").emit(functools.partial(self._assumption, text))
            self.assume(text)
        if texts:
            self.check_fixed()

    def _assumption(self, text: str) -> str:
        return f"{self.spell(text)} is assumed at {self.place()}"

    def check_fixed(self) -> None:
        """Errors: ConstraintViolation where the program has fixed a declared size."""
        for name, fact in self.declared.items():
            if name in self.unbacked.declared and name not in self.strict:
                continue  # it is compiled for that size
            value = self.trace.world.fixed_value(name)
            if value is not None:
                self.violate(fact, f"is fixed to {value}")

    def give_up(self, error: Unprintable) -> NoReturn:
        """Traces again, with constants for what is part of an expression that can't be guarded."""
        for name in error.symbols:
            if name in self.declared:
                self.violate(self.declared[name], f"takes part in {error}, which can't be guarded")
        symbols = [
            name for symbol in error.symbols for name in names_in(self.expand(symbol))
        ]
        if not all(name in self.facts for name in symbols):
            raise Break("unknown_number_decides", str(error))
        if not symbols:
            raise NotSymbolic(str(error))
        facts = [self.facts[name] for name in symbols]
        shown = ", ".join(fact.text() for fact in facts)
        logs.log("dynamic").emit(
            f"{shown} is fixed, because {error} can't be guarded, at {self.place()}")
        self.context.fixed |= {
            fact for name, fact in self.facts.items()
            if fact in facts or self.values[name] in [self.values[n] for n in symbols]
        }
        raise RestartTrace(None)

    def check_declared(self, reason: NotSymbolic) -> None:
        """Before a trace with static sizes: that will be wrong of sizes declared dynamic."""
        for fact in self.declared.values():
            self.violated(fact, str(reason), reason.place or self.place())

    def violated(self, fact: Fact, reason: str, place: str) -> None:
        """A declared size is static in this trace: an error, unless the program has one.

        Not where only this compiler needs it so: then the trace begins again, to break there."""
        if reason == TRANSFORM and not self.context.breaks_transforms:
            self.context.breaks_transforms, self.context.static_sizes = True, False
            raise RestartTrace(None)
        if self.context.violated is None:
            self.context.violated = self.violation(fact, f"can't be ({reason})", place)

    def violation(
        self, fact: Fact, what: str, place: str, advice: str = ADVICE
    ) -> ConstraintViolation:
        return ConstraintViolation(
            f"{place}\n  {fact.text()} was declared dynamic, but {what} here.\n  {advice}")

    def violate(self, fact: Fact, what: str, advice: str = ADVICE) -> NoReturn:
        raise self.violation(fact, what, self.place(), advice)

    def violate_unbacked(self, fact: Fact, what: str) -> NoReturn:
        """The program needs to know something of an unbacked size."""
        if fact not in self.declared.values():  # unbacked since it changed: a symbolic one will do
            self.context.decided |= {fact}
            raise RestartTrace(None)
        raise ConstraintViolation(
            f"{self.place()}\n  {fact.text()} was declared unbacked, but whether {what} is needed "
            "here.\n  Say what holds of it by torch._check before this line, or use mark_dynamic."
        )

    def finish(self, scope: Scope) -> None:
        """At the end of the trace: all that was assumed must hold for the frame at hand."""
        self.keep_assumptions()
        wrong = failures((g for g in self.trace.guards if g.kind == "SHAPE"), scope)
        if wrong and self.trace.world.is_symbolic:
            raise NotSymbolic(f"a guard fails for its own frame: {wrong[0]}")
        assert not wrong, wrong

    # -- assuming -------------------------------------------------------------------------------

    def decide(self, text: str) -> bool:
        """The truth of a comparison in this trace; guards it."""
        if self._is_known_to_world(text):
            answer = bool(self.symbolic_value(text))
            self.keep_assumptions()
            return answer
        answer = bool(self.evaluate(text))
        if any(word in text for word in UNGUARDED):
            self._fix_facts(text)
            return answer
        assumption = text if answer else f"(not {text})"
        if assumption not in self._said:
            logs.log("dynamic").emit(
                lambda: f"{self.spell(assumption)} is assumed at {self.place()}")
        self.assume(assumption)
        return answer

    def evaluate(self, text: str) -> Any:
        """The value of an expression in this trace."""
        return eval(text, {"__builtins__": {}}, {**FUNCTIONS, **self.values})

    def assume(self, text: str) -> None:
        """Guards an expression that holds in this trace."""
        if text in self._said:
            return
        self._said.add(text)
        self.trace.guard("SHAPE", None, self.payload(text))

    def payload(self, text: str) -> ShapeFacts:
        """The expression with what its names stand for."""
        text = self.expand(text)
        return ShapeFacts(text, {name: self.facts[name] for name in names_in(text)})

    def fix(self, number: SymbolicNumber) -> None:
        """The number becomes a constant of this trace."""
        logs.log("dynamic").emit(
            lambda: f"{self.spell(number.text)} is fixed to {number._value!r} at {self.place()}")
        names = names_in(self.expand(number.text))
        for name in names:
            if name in self.declared and len(names) == 1 and number.text == name:
                self.violate(self.declared[name], f"is fixed to {number._value}")
        if number.source is not None:
            self.trace.guard("CONST", number.source, number._value)
        elif self._is_known_to_world(number.text):
            self.decide(f"({number.text} == {number._value})")
        elif type(number._value) is int and not any(word in number.text for word in UNGUARDED):
            self.assume(f"({number.text} == {number._value})")
        else:
            self._fix_facts(number.text)

    def _fix_facts(self, text: str) -> None:
        """All that an expression is made of becomes constant: no guard can compute it."""
        for name in names_in(self.expand(text)):
            if name in self.declared:
                self.violate(self.declared[name], f"is fixed to {self.values[name]}")
            if self.facts[name].what == "value":
                self.trace.guard("CONST", self.facts[name].source, self.values[name])
            else:
                self.assume(f"({name} == {self.values[name]})")

    def place(self) -> str:
        """The user's line, with its text."""
        line = user_line(self.trace.frames)
        if line is None:
            return "an unknown line"
        text = line.text or linecache.getline(line.filename, line.lineno).strip()
        return f"{line}: {text}" if text else str(line)

    def spell(self, text: str) -> str:
        """The expression with the program's words in place of names."""
        tree = ast.parse(self.expand(text), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in self.facts:
                node.id = self.facts[node.id].text()
        return ast.unparse(tree)

    # -- graph ----------------------------------------------------------------------------------

    def prepare(self, function: Any, args: list[Var], inputs: list[Any]) -> None:
        """Before `as_fake` of the arguments of a graph operation: which numbers may stay open."""
        name = getattr(function, "__name__", "").strip("_")
        if self.trace.world.is_symbolic and has_other_transform():
            if self.declared or self.context.breaks_transforms:
                raise Break("tensor_not_modelled", f"{TRANSFORM} beside sizes declared dynamic")
            raise NotSymbolic(TRANSFORM)
        self.gave_hint = False
        self._hints_wanted = bool(self.facts) and is_value_free(function)
        if name in OFFSET_READERS:
            self._guard_offsets([*inputs, *args])
        self._float_hints_wanted = bool(self.facts) and name in FLOAT_FREE
        if torch._C._functorch.get_dynamic_layer_stack_depth():
            self.want_values()  # what runs below the levels is recorded with its numbers

    def want_values(self) -> None:
        """From here on `as_fake` fixes numbers."""
        self._hints_wanted = self._float_hints_wanted = False

    def _guard_offsets(self, known: list[Var]) -> None:
        """The result depends on where in their storages the inputs begin."""
        if self.trace.world.is_symbolic:
            raise NotSymbolic("the offset of a tensor in its storage is read")
        for var in known:
            real = getattr(var, "real", None)
            if isinstance(real, torch.Tensor) and var.source is not None:
                name = self.name(Fact(var.source, "storage_offset"), int(real.storage_offset()))
                self.assume(f"({name} == {self.values[name]})")

    def fake_number(self, number: SymbolicNumber) -> Any:
        """A number as an argument for the fakes."""
        if self._hints_wanted or (self._float_hints_wanted and type(number.hint) is float):
            self.gave_hint = True
            return number.hint
        if not self._may_be_size(number):
            return number.value
        if not self.trace.world.is_symbolic:
            self.context.symbolic = True
            raise RestartTrace(None)
        return self.symbolic_value(number.text)

    def _may_be_size(self, number: SymbolicNumber) -> bool:
        if self.context is None or self.context.static_sizes or type(number.hint) is not int:
            return False
        return is_guardable(number)

    def node(self, text: str) -> Any:
        """The graph node that computes an expression (a plain number where it has no names)."""
        tree = ast.parse(text, mode="eval").body
        key = ast.unparse(tree)
        known = self._nodes.get(key)
        if known is None or known._erased:
            known = self._build(tree)
            if isinstance(known, fx.Node):
                self._nodes[key] = known
        return known

    def _build(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._input(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operation(OPERATORS[type(op)], left, right)
            case ast.UnaryOp(op=op, operand=operand):
                return self._operation(OPERATORS[type(op)], operand)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._operation(FUNCTIONS[name], *args)
        raise Break("not_a_graph_argument", ast.unparse(tree))

    def _operation(self, function: Callable[..., Any], *operands: ast.expr) -> Any:
        args = tuple(self.node(ast.unparse(operand)) for operand in operands)
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args)
        values = [arg.meta["example_value"] if isinstance(arg, fx.Node) else arg for arg in args]
        on_symbols = any(isinstance(value, torch.SymInt) for value in values)
        compute = SYMBOLIC_FUNCTIONS.get(function.__name__, function) if on_symbols else function
        return self.trace.graph.operation("call_function", function, args, {}, compute(*values))

    def _input(self, name: str) -> fx.Node:
        if name in self.derived:
            return self.node(self.derived[name])
        if name not in self.facts:
            return self.unbacked.input(name)
        fact = self.facts[name]
        if fact.what != "value":
            tensor, method = self.tensors[fact.source].node, self.trace.graph.read_input
            return method("call_method", fact.what, (tensor, fact.index), self.values[name])
        return self.trace.graph.placeholder(fact.source, self.values[name])


class Expansion(ast.NodeTransformer):
    """Puts expressions in place of names."""

    def __init__(self, expressions: dict[str, str]) -> None:
        self.expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        if node.id not in self.expressions:
            return node
        tree = ast.parse(self.expressions[node.id], mode="eval").body
        return self.visit(tree)  # type: ignore[no-any-return]


def names_in(text: str) -> list[str]:
    """The names of an expression, in order."""
    nodes = ast.walk(ast.parse(text, mode="eval"))
    found = [node.id for node in nodes if isinstance(node, ast.Name)]
    return list(dict.fromkeys(name for name in found if name not in FUNCTIONS))
