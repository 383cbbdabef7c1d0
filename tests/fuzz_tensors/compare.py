"""Runs a program in eager and compiled, forward and backward, and says what differs.

Compared of each call: the exception's type, or each output's value, type, dtype, sizes, strides, what it
shares storage with, which object it is, `requires_grad`, view-ness; the inputs afterwards and whether
they have been written; gradients; the state of the random numbers and of torch.

Values are equal where they are near eager's, or as near to a computation in float64 as eager's are.
Where rounding alone changes eager's value as much, it is a tie: it is told apart from differences.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.common import default_dtype
from tests.fuzz_tensors.generate import SCOPE
from tests.fuzz_tensors.inputs import Made, make_inputs
from tests.fuzz_tensors.program import Program
from tests.fuzz_tensors.ties import Variation, tied, variations
from tests.fuzz_tensors.undefined import undefined

Function = Callable[..., Any]
Moved = Callable[[torch.Tensor], torch.Tensor] | None
# Loud, and said in the documents; loud, where eager's result lies in more memory than it has elements.
REFUSED = ("this compiled backward can't be differentiated again", "setStorage: sizes")
NEAR = {
    torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.complex64: 1e-5,
    torch.complex128: 1e-12, torch.complex32: 2e-3,
}  # fmt: skip
EXACT_NAMES = (
    (re.compile(r"torch\.(float16|bfloat16|float32)\b"), "torch.float64"), (re.compile(r"torch\.complex64"), "torch.complex128"),
    (re.compile(r"\.(half|bfloat16|float)\(\)"), ".double()"),
)  # fmt: skip

TIES: dict[int, str] = {}  # of each seed
# Errors of eager's own, where a compiled program does better.
OWN = (
    "Found dtype", "expected scalar type", "one of the variables needed for gradient", "output with shape",
    "Unexpected floating ScalarType in at::autocast::prioritize",
)  # fmt: skip


@dataclass(frozen=True)
class Raised:
    """An exception; its text may differ."""

    kind: str
    text: str = field(compare=False)

    def __repr__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Outcome:
    """facts: (name, what must be equal). values: (name, tensor), compared as numbers."""

    facts: list[tuple[str, Any]] = field(default_factory=list)
    values: list[tuple[str, torch.Tensor]] = field(default_factory=list)

    def same_facts(self, other: Outcome, is_tie: Callable[[str, Any], bool]) -> str:
        """is_tie: of a fact's name and eager's."""
        for (name, a), (found, b) in zip(self.facts, other.facts, strict=False):
            if (name, a) != (found, b) and not (name == found and is_tie(name, a)):
                return f"{name}: eager {a}, compiled {b if name == found else f'{found} {b}'}"
        return "" if len(self.facts) == len(other.facts) else "another number of outputs or gradients"


def run(program: Program, function: Function, call: int, exact: bool = False, moved: Moved = None) -> Outcome:
    return run_together([program], lambda given: (function(*given),), call, exact, moved)[0]


def run_together(
    programs: Sequence[Program], function: Function, call: int, exact: bool = False, moved: Moved = None
) -> list[Outcome]:
    """What each of the programs does; function: gives the outputs of each for the inputs of each.

    An exception of one is one of all."""
    made = [make_inputs(program, call, exact, moved) for program in programs]
    versions = [[x._version for x in one.values] for one in made]
    torch.default_generator.manual_seed(call)
    outcomes = [Outcome() for _ in programs]
    try:
        with warnings.catch_warnings(), eval(programs[0].around, SCOPE):
            warnings.simplefilter("ignore")
            outputs = function(*(one.values for one in made))
    except Exception as error:
        tell(outcomes, "exception", error)
        return outcomes
    state = hash(torch.get_rng_state().numpy().tobytes())
    learned = []
    for program, one, before, given, outcome in zip(programs, made, versions, outputs, outcomes, strict=True):
        outcome.facts.append(("random state", state))
        outcome.facts.append(("torch's state", (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))))
        try:
            learned.append(observe(program, one, before, given, outcome))
        except RuntimeError as error:  # a view across inference mode
            tell([outcome], "observation", error)
    if programs[0].around != "torch.inference_mode()":
        backward(learned, outcomes)
    for one, outcome in zip(made, outcomes, strict=True):
        gradients(one.leaves, outcome)
    return outcomes


def tell(outcomes: list[Outcome], name: str, error: Exception) -> None:
    for outcome in outcomes:
        outcome.facts.append((name, Raised(type(error).__name__, str(error)[:300])))


def observe(
    program: Program, made: Made, versions: list[int], outputs: tuple[Any, ...], outcome: Outcome
) -> list[torch.Tensor]:
    """All that can be seen after a call; gives what gradients are asked of."""
    named = [(i.name, x) for i, x in zip(program.inputs, made.values, strict=True)]
    for name, x, version in zip((i.name for i in program.inputs), made.values, versions, strict=True):
        outcome.facts.append((f"input {name} was written", x._version != version))
    named += [(f"output {n} {name}", x) for n, (name, x) in enumerate(zip(program.outputs, outputs, strict=True))]
    described(named, outcome)
    named = [(name, torch.tensor(x, dtype=torch.float32) if isinstance(x, float) else x) for name, x in named]
    outcome.values += [(name, copied(x)) for name, x in named if isinstance(x, torch.Tensor)]
    return [x for _, x in named] if made.leaves else []


def copied(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.detach().clone().resolve_conj().resolve_neg()


def described(named: list[tuple[str, Any]], outcome: Outcome) -> None:
    storages: dict[int, str] = {}
    objects: dict[int, str] = {}
    for name, x in named:
        if not isinstance(x, torch.Tensor):
            outcome.facts.append((name, (type(x).__name__, "" if isinstance(x, float) else repr(x))))
            continue
        strides = tuple(step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1) if x.numel() else ()
        outcome.facts += [
            (f"{name} dtype", x.dtype),
            (f"{name} size", tuple(x.shape)),
            (f"{name} strides", strides),
            (f"{name} requires_grad", x.requires_grad),
            (f"{name} is_leaf", x.is_leaf),
            (f"{name} object", objects.setdefault(id(x), name)),
            (f"{name} flags", (x.is_inference(), x.is_conj(), x.is_neg())),
        ]
        if x.numel():
            key = x.untyped_storage().data_ptr()
            outcome.facts.append((f"{name} shares storage with", storages.setdefault(key, name)))
            base = x._base if x._is_view() else None
            outcome.facts.append((f"{name} is a view of", objects.get(id(base), "") if base is not None else ""))


def backward(learned: list[list[Any]], outcomes: list[Outcome]) -> None:
    """One for all programs."""
    outputs, grads = [], []
    for n, x in (pair for tensors in learned for pair in enumerate(tensors)):
        if isinstance(x, torch.Tensor) and x.requires_grad and (x.is_floating_point() or x.is_complex()):
            if x.grad_fn is None:
                continue
            outputs.append(x)
            dtype = torch.complex64 if x.is_complex() else None
            random = torch.randn(x.shape, generator=torch.Generator().manual_seed(n), dtype=dtype, device="cpu")
            grads.append(random.to(x.device, x.dtype))
    if not outputs:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.backward(outputs, grads)
    except Exception as error:
        tell(outcomes, "exception in backward", error)


def gradients(leaves: list[torch.Tensor], outcome: Outcome) -> None:
    if any(isinstance(fact, Raised) for _, fact in outcome.facts):
        return
    for n, leaf in enumerate(leaves):
        outcome.facts.append((f"gradient {n}", leaf.grad is None or (leaf.grad.dtype, leaf.grad.shape)))
        if leaf.grad is not None:
            outcome.values.append((f"gradient {n}", copied(leaf.grad)))


def difference(program: Program, compiler: Callable[[Function], Function]) -> str:
    """What differs from eager; empty where nothing does."""
    eager = function_of(program.source())
    compiled = compiler(function_of(program.source()))
    for call in range(2 * len(program.sizes)):
        want = run(program, eager, call)
        try:
            got = run(program, compiled, call)
        except Exception as error:
            return f"call {call}: {type(error).__name__}: {error}"
        complete = using_everything(program)
        if raised(want) and not raised(got) and program != complete:
            return difference(complete, compiler)
        if any(isinstance(fact, Raised) and fact.text.startswith(OWN) for _, fact in want.facts):
            return ""
        if any(isinstance(fact, Raised) and fact.text.startswith(REFUSED) for _, fact in got.facts):
            return ""
        if text := call_differs(program, call, want, got):
            return text
    return ""


def call_differs(program: Program, call: int, want: Outcome, got: Outcome) -> str:
    text = want.same_facts(got, lambda name, fact: number_tied(program, call, name, fact))
    for (name, a), (_, b) in zip(want.values, got.values, strict=False):
        text = text or values_differ(program, call, name, a, b)
    if not text:
        return ""
    if undefined(lambda: run(program, function_of(program.source()), call)):
        note(program, f"undefined: call {call}: {text}")
        return ""
    return f"call {call}: {text}"


def eager_outcomes(program: Program) -> list[Outcome]:
    """Of each call."""
    function = function_of(program.source())
    return [run(program, function, call) for call in range(2 * len(program.sizes))]


def together(programs: Sequence[Program]) -> str:
    """The text of `f` that takes the inputs of each program as a list and gives the outputs of each."""
    texts = [program.source().replace("def f(", f"def f{n}(", 1) for n, program in enumerate(programs)]
    calls = "".join(f"f{n}(*x{n}), " for n in range(len(programs)))
    return "\n".join([*texts, f"def f({', '.join(f'x{n}' for n in range(len(programs)))}):", f"    return {calls}"])


def batch_difference(
    programs: Sequence[Program], wanted: Sequence[Sequence[Outcome]], compiler: Callable[[Function], Function]
) -> str:
    """What differs from eager in a function of them all. wanted: of each program, what eager does in each call."""
    compiled = compiler(function_of(together(programs)))
    for call in range(2 * len(programs[0].sizes)):
        outcomes = run_together(programs, compiled, call)
        for program, want, got in zip(programs, wanted, outcomes, strict=True):
            if text := call_differs(program, call, want[call], got):
                return f"seed {program.seed}, {text}"
    return ""


def raised(outcome: Outcome) -> bool:
    return outcome.facts[0][0] == "exception"


def using_everything(program: Program) -> Program:
    """What nothing uses isn't computed, and can't raise: here all is used."""
    return replace(program, outputs=tuple(name for s in program.statements for name in s.targets))


def function_of(source: str, **more: Any) -> Function:
    scope = {**SCOPE, **more}
    exec(compile(source, "<tensor program>", "exec"), scope)
    return scope["f"]


def values_differ(program: Program, call: int, name: str, want: torch.Tensor, got: torch.Tensor) -> str:
    """What differs; a tie is noted, and differs not."""
    good = near_enough(program, call, name, want, got)
    if good.all():
        return ""
    kind = tied(~good, distances(want, got), want, lambda v: dict(varied(program, call, v).values).get(name), distances)
    if kind:
        note(program, f"{kind}: call {call}: {name}")
        return ""
    many = f"{name}: {(~good).sum()} of {good.numel()} elements differ: "
    return f"{many}eager {want[~good][:4].tolist()}, compiled {got[~good][:4].tolist()}"


def near_enough(program: Program, call: int, name: str, want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    if want.dtype not in NEAR:
        return want == got
    near = NEAR[want.dtype]
    a, b = _wide(want), _wide(got)
    top = a[a.isfinite()].abs().max().item() if a.isfinite().any() else 0.0
    good = torch.isclose(b, a, rtol=near, atol=near * min(top, 1.0), equal_nan=True)
    if good.all():
        return good
    reference = exact_values(program, call).get(name)
    if reference is not None and reference.shape == a.shape:
        reference = _wide(reference)
        bound = 4 * (a - reference).abs()
        bound = torch.where(bound.isfinite(), bound, 0.0)
        good |= torch.isclose(b, reference, rtol=near, atol=near * min(top, 1.0), equal_nan=True)
        good |= (b - reference).abs() <= bound
    return good


def note(program: Program, text: str) -> None:
    TIES.setdefault(program.seed, text)


def taken_ties() -> dict[int, str]:
    """Of each seed since the last time."""
    taken = dict(TIES)
    TIES.clear()
    return taken


def exact_values(program: Program, call: int) -> dict[str, torch.Tensor]:
    """The program in float64; empty where it can't run so."""
    source = program.source()
    for pattern, name in EXACT_NAMES:
        source = pattern.sub(name, source)
    with default_dtype(torch.float64):
        return dict(run(program, function_of(source), call, exact=True).values)


def number_tied(program: Program, call: int, name: str, fact: Any) -> bool:
    """Whether rounding alone changes a number that eager counts, and the compiled program counts otherwise."""
    if not (isinstance(fact, tuple) and fact[0] in ("int", "bool")):
        return False
    for variation in variations():
        if dict(varied(program, call, variation).facts).get(name, fact) != fact:
            note(program, f"{variation[0]}: call {call}: {name}")
            return True
    return False


def varied(program: Program, call: int, variation: Variation) -> Outcome:
    """What eager gives with other roundings; nothing where it raises then."""
    _, mode, shaker = variation
    source = program.source(after="shake") if shaker else program.source()
    with mode:
        return run(program, function_of(source, shake=shaker), call, moved=shaker and shaker.moved)


def distances(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Infinite where only one is finite, or where non-finite values differ."""
    if one.dtype not in NEAR:
        return (one != other).double()
    a, b = _wide(one), _wide(other)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(float("inf")))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)
