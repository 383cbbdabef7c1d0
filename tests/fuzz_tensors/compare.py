"""Runs a program in eager and compiled, forward and backward, and says what differs.

Compared of each call: the exception's type, or each output's value, type, dtype, sizes, strides, what it
shares storage with, which object it is, `requires_grad`, view-ness; the inputs afterwards and whether
they have been written; gradients; the state of the random numbers and of torch.

Values are equal where they are near eager's, or as near to a computation in float64 as eager's are.
Where small changes to the inputs and intermediates change eager's value as much, it says nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.common import default_dtype
from tests.fuzz_tensors.generate import SCOPE
from tests.fuzz_tensors.inputs import Made, make_inputs
from tests.fuzz_tensors.program import Program
from tests.fuzz_tensors.undefined import undefined

Function = Callable[..., Any]
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


SUMS = re.compile(r"sum|mean|var|std|norm|prod|softmax|logsumexp|mm|dot|mv|linear|conv|loss|dist|cdist|renorm")
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

    def same_facts(self, other: Outcome) -> str:
        for (name, a), (found, b) in zip(self.facts, other.facts, strict=False):
            if (name, a) != (found, b):
                return f"{name}: eager {a}, compiled {b if name == found else f'{found} {b}'}"
        return "" if len(self.facts) == len(other.facts) else "another number of outputs or gradients"


def run(program: Program, function: Function, call: int, exact: bool = False, noise: float = 0.0) -> Outcome:
    return run_together([program], lambda given: (function(*given),), call, exact, noise)[0]


def run_together(
    programs: Sequence[Program], function: Function, call: int, exact: bool = False, noise: float = 0.0
) -> list[Outcome]:
    """What each of the programs does; function: gives the outputs of each for the inputs of each.

    An exception of one is one of all."""
    made = [make_inputs(program, call, exact, noise) for program in programs]
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
    text = want.same_facts(got)
    for (name, a), (_, b) in zip(want.values, got.values, strict=False):
        text = text or values_differ(program, call, name, a, b)
    if text and not undefined(lambda: run(program, function_of(program.source()), call)):
        return f"call {call}: {text}"
    return ""


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
    if want.dtype not in NEAR:
        if torch.equal(want, got) or unstable(program, call, name, want, got):
            return ""
        return f"{name}: {(want != got).sum()} of {want.numel()} elements differ: eager {_short(want)}, compiled {_short(got)}"
    near = NEAR[want.dtype]
    a, b = _wide(want), _wide(got)
    top = a[a.isfinite()].abs().max().item() if a.isfinite().any() else 0.0
    good = torch.isclose(b, a, rtol=near, atol=near * min(top, 1.0), equal_nan=True)
    if good.all():
        return ""
    reference = exact_values(program, call).get(name)
    if reference is not None and reference.shape == a.shape:
        reference = _wide(reference)
        bound = 4 * (a - reference).abs()
        bound = bound[bound.isfinite()].max().item() if bound.isfinite().any() else 0.0
        good |= torch.isclose(b, reference, rtol=near, atol=bound, equal_nan=True)
    if good.all() or unstable(program, call, name, want, got):
        return ""
    return f"{name}: {(~good).sum()} of {good.numel()} elements differ: eager {a[~good][:4].tolist()}, compiled {b[~good][:4].tolist()}"


def exact_values(program: Program, call: int) -> dict[str, torch.Tensor]:
    """The program in float64; empty where it can't run so."""
    source = program.source()
    for pattern, name in EXACT_NAMES:
        source = pattern.sub(name, source)
    with default_dtype(torch.float64):
        return dict(run(program, function_of(source), call, exact=True).values)


def unstable(program: Program, call: int, name: str, want: torch.Tensor, got: torch.Tensor) -> bool:
    """True where rounding alone changes eager's value as much."""
    away = _away(want, got)
    for seed in range(4):
        function = function_of(program.source(after="shake"), shake=Shaker(seed))
        with Shaken(seed):
            noisy = dict(run(program, function, call, noise=2.0).values).get(name)
        if noisy is not None and noisy.shape == want.shape and away <= 8 * _away(want, noisy):
            return True
    return False


class Shaker:
    """Changes what a statement made by a few units in the last place."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *tensors: Any) -> None:
        for x in tensors:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and not x._is_view():
                self.shake(x)

    def shake(self, x: torch.Tensor) -> None:
        if x.is_inference() or (x.is_leaf and x.requires_grad) or x._is_zerotensor():
            return  # the last has no memory: `sgn` makes one as a gradient
        noise = torch.randn(x.shape, generator=self.generator, device="cpu").to(x.device, x.dtype)
        x.data.mul_(1 + 2 * torch.finfo(x.dtype).eps * noise)


class Shaken(TorchDispatchMode):
    """So changes what sums and products make, whose order is free, and what each operation of a backward makes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.shaker = Shaker(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_sum = SUMS.search(func._schema.name) is not None
        is_backward = torch._C._current_graph_task_id() != -1
        if (is_sum or is_backward) and not any(is_alias(x) for x in func._schema.returns):
            self.shaker(*tree_leaves(result))
        return result


def is_alias(returned: Any) -> bool:
    return returned.alias_info is not None


def _away(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest distance; infinite where only one is finite, or where non-finite values differ."""
    if one.dtype not in NEAR:
        return float((one != other).any())
    a, b = _wide(one), _wide(other)
    same = (a == b) | (a.isnan() & b.isnan())
    far = (a - b).abs()[~same]
    return far.nan_to_num(float("inf")).max().item() if far.numel() else 0.0


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _short(x: torch.Tensor) -> list[Any]:
    return x.flatten()[:8].tolist()
