"""One graph for all sizes: captured once, it gives eager's results for other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import dynamo
from dynamo import aot
from dynamo.aot.decompositions import default_decompositions
from dynamo.aot.records import Unsupported
from dynamo.aot.symbols import assumption_check
from dynamo.base.examples import real_examples
from tests.aot.compare import check
from tests.aot.symbolic_programs import PROGRAMS

R = torch.randn
FIRST = (13, 22)
SIZES = ((2, 3), (5, 7), (3, 16), (17, 5), (9, 4))


class Recorded:
    """A compiler that runs graphs as they are, and checks what they assume of their sizes."""

    def __init__(self) -> None:
        self.modules: list[torch.fx.GraphModule] = []
        self.refused = 0

    def __call__(self, module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        self.modules.append(module)
        module.graph.lint()
        check_values(module)
        holds = assumption_check(module.meta["symbols"])

        def run(*inputs: Any) -> Any:
            if not holds(*inputs):
                raise OtherSizes
            return module.forward(*inputs)

        return run


class OtherSizes(Exception):
    """The graph assumes something that does not hold for these sizes."""


def check_values(module: torch.fx.GraphModule) -> None:
    """Every node has fakes or numbers in `meta["val"]`; sizes among arguments are no SymInts."""
    for node in module.graph.nodes:
        if node.op != "output":
            for value in pytree.tree_leaves(node.meta["val"]):
                assert value is None or isinstance(value, (
                    torch._subclasses.FakeTensor, int, float, str, torch.SymInt, torch.SymFloat))
        for part in pytree.tree_leaves((node.args, node.kwargs)):
            assert not isinstance(part, (torch.SymInt, torch.SymFloat, torch.SymBool))


def symbolic_capture(function: Callable[..., Any], *inputs: Any) -> Any:
    """The one graph of a function with all sizes symbolic, and what it is called with."""
    found = []

    def keep(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        found.append((gm, real_examples(examples)))
        return gm.forward

    dynamo.compile(function, backend=keep, fullgraph=True, dynamic=True)(*inputs)
    return found[0]


def leaves(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Floating tensors that require grad."""
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.requires_grad_()
    return inputs


def place_of(given: Any, inputs: tuple[Any, ...]) -> int | None:
    """Which of the program's inputs one of the graph's is; None for a global."""
    for at, value in enumerate(inputs):
        if value is given or type(value) is type(given) is int:
            return at
    return None


class Program:
    """One program captured at the first sizes; make: the graph's inputs for other sizes."""

    def __init__(self, name: str) -> None:
        function, make = PROGRAMS[name]
        inputs = make(*FIRST)
        if name not in WITHOUT_GRADIENTS:
            leaves(inputs)
        self.gm, self.examples = symbolic_capture(function, *inputs)
        places = [(place_of(given, inputs), given) for given in self.examples]

        def ordered(b: int, n: int, grad: bool = False) -> tuple[Any, ...]:
            made = leaves(make(b, n)) if grad else make(b, n)
            return tuple([given if at is None else made[at] for at, given in places])

        self.make = ordered

    def held(self, compare: Callable[[tuple[int, int]], None]) -> int:
        """For how many of the sizes `compare` finds that the graph was made for them."""
        count = 0
        for sizes in (FIRST, *SIZES):
            try:
                compare(sizes)
                count += 1
            except OtherSizes:
                assert sizes != FIRST
        return count


WITHOUT_GRADIENTS = ("mutates", "mutates_view")
TABLE = default_decompositions()


# The forward pass of training is that of inference, so that a few have both by default.
@pytest.mark.parametrize(("name", "training"), [
    *[(name, True) for name in PROGRAMS if name not in WITHOUT_GRADIENTS], *[(name, False) for name in WITHOUT_GRADIENTS],
    *[pytest.param(name, False, marks=pytest.mark.long if number % 6 else ())
      for number, name in enumerate(PROGRAMS) if name not in WITHOUT_GRADIENTS],
])
def test_program(name: str, training: bool) -> None:
    (check_training if training else check_inference)(Program(name))


def check_inference(program: Program) -> None:
    recorded = Recorded()
    with torch.no_grad():
        examples = [x.detach() if isinstance(x, torch.Tensor) else x for x in program.examples]
        call = aot.compile_inference(
            program.gm, examples, recorded, decompositions=TABLE, symbolic=True)

        def compare(sizes: tuple[int, int]) -> None:
            check(program.gm.forward, call, lambda: program.make(*sizes), views=False, exact=False)

        assert program.held(compare) >= 5, recorded.modules[0].meta["symbols"]


def check_training(program: Program) -> None:
    recorded = Recorded()
    call = aot.compile_training(
        program.gm, program.examples, recorded, recorded, decompositions=TABLE, symbolic=True)

    def compare(sizes: tuple[int, int]) -> None:
        seed = int(torch.randint(1 << 30, ()))
        runs = []
        for function in (call, program.gm.forward):
            torch.default_generator.manual_seed(seed)
            runs.append(gradients(function, program.make(*sizes, grad=True)))
        for got, want in zip(*runs, strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                assert got.dtype == want.dtype
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    assert program.held(compare) >= 5, recorded.modules[0].meta["symbols"]


def gradients(function: Callable[..., Any], inputs: tuple[Any, ...]) -> list[Any]:
    """The outputs that have a gradient, and those of the inputs for random ones of these."""
    outputs = [
        out for out in pytree.tree_leaves(function(*inputs))
        if isinstance(out, torch.Tensor) and out.requires_grad
    ]  # fmt: skip
    if not outputs:
        return []
    given = [torch.randn_like(out) for out in outputs]
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, wanted, given, allow_unused=True)]


def test_views_are_views_of_the_inputs() -> None:
    """Aliases, versions and view flags are eager's, for inputs with any offset."""
    def function(x: Any, y: Any) -> Any:
        z = x @ y
        y.mul_(2)
        return x, x[1:], x.t()[0], y, y.view(-1), z, z.t(), y.detach()[0], x.size(0)

    gm, examples = symbolic_capture(function, torch.randn(13, 22), torch.randn(22, 9))
    call = aot.compile_inference(gm, examples, Recorded(), symbolic=True)
    for b, n, m in ((13, 22, 9), (5, 7, 3), (3, 4, 8)):
        check(gm.forward, call, lambda b=b, n=n, m=m: (
            torch.randn(b + 2, n)[2:], torch.randn(2, n, m)[1]), exact=False)


def test_offsets_without_symbols() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x[1:])
    whole = torch.randn(6, 5)
    call = aot.compile_inference(gm, [whole[2:]], Recorded(), symbolic=True)
    assert torch.equal(call(whole[2:]), whole[3:])


def test_mutation_with_history() -> None:
    def function(x: Any, w: Any) -> Any:
        x.mul_(2).add_(w)
        return x.sum() * w.mean()

    def make(n: int) -> list[Any]:
        return [torch.randn(n, n + 1, requires_grad=True), torch.randn(n + 1, requires_grad=True)]

    def run(call: Callable[..., Any], leaf: Any, w: Any) -> Any:
        x = leaf * 1
        call(x, w)[0].sum().backward()
        return x.detach(), leaf.grad, w.grad

    first = make(13)
    gm, examples = symbolic_capture(function, first[0] * 1, first[1])
    call = aot.compile_training(gm, examples, Recorded(), Recorded(), symbolic=True)
    for n in (13, 5, 8):
        torch.default_generator.manual_seed(n)
        ours = run(call, *make(n))
        torch.default_generator.manual_seed(n)
        for got, want in zip(ours, run(gm.forward, *make(n)), strict=True):
            torch.testing.assert_close(got, want)


def test_shared_storage_is_refused() -> None:
    whole = torch.randn(26, 5)
    gm, examples = symbolic_capture(lambda x, y: x.add_(y), whole[:13], whole[13:])
    with pytest.raises(Unsupported, match="shares"):
        aot.compile_inference(gm, examples, Recorded(), symbolic=True)


@pytest.mark.parametrize("function", [
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x * x.sum().item(),
], ids=["nonzero", "mask", "item"])  # fmt: skip
def test_refused(function: Callable[..., Any]) -> None:
    gm = torch.fx.symbolic_trace(function)
    with pytest.raises(Unsupported):
        aot.compile_inference(gm, [torch.randn(4, 5)], Recorded(), symbolic=True)


def test_assumptions_are_checked() -> None:
    """What the program does at the sizes at hand only is an assumption, not a silent answer."""
    gm, examples = symbolic_capture(lambda x: x.view(x.size(0) // 2, 2, -1).sum(1), R(6, 5))
    recorded = Recorded()
    call = aot.compile_inference(gm, examples, recorded, symbolic=True)
    assert recorded.modules[0].meta["symbols"].assumptions
    x = R(8, 3)
    assert torch.equal(call(x)[0], x.view(4, 2, 3).sum(1))
    with pytest.raises(OtherSizes):
        call(R(7, 4))


def test_numbers_that_backward_needs() -> None:
    """Sizes that no saved tensor shows come as ints; number inputs keep their place."""
    def function(x: Any, k: int) -> Any:
        return x[: x.size(0) // 2].sum(0) * k

    x = R(12, 5, requires_grad=True)
    gm, examples = symbolic_capture(function, x, 7)
    recorded = Recorded()
    call = aot.compile_training(gm, examples, recorded, recorded, symbolic=True)
    table = recorded.modules[0].meta["symbols"]
    assert (1, None) in table.symbols.values()
    for rows, k in ((12, 7), (9, 0), (20, -3)):
        x = R(rows, 4, requires_grad=True)
        (grad,) = torch.autograd.grad(call(x, k)[0].sum(), x)
        (want,) = torch.autograd.grad(function(x, k).sum(), x)
        assert torch.equal(grad, want)
    backward = recorded.modules[1]
    assert None in {dim for _, dim in backward.meta["symbols"].symbols.values()}


def test_an_output_that_is_not_used() -> None:
    """One of scalars and one of symbolic size, each used alone."""
    def function(x: Any, y: Any) -> Any:
        return (x * y).sum(), (x * y).sin().sum(1)

    gm, examples = symbolic_capture(function, *leaves((R(13, 22), R(13, 22))))
    call = aot.compile_training(gm, examples, Recorded(), Recorded(), symbolic=True)
    for which in (0, 1):
        x, y = leaves((R(5, 3), R(5, 3)))
        got = torch.autograd.grad(call(x, y)[which].sum(), (x, y))
        want = torch.autograd.grad(gm(x, y)[which].sum(), (x, y))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)


def test_dropout_draws_as_eager() -> None:
    gm, examples = symbolic_capture(lambda x: torch.nn.functional.dropout(x, 0.3), R(13, 22))
    call = aot.compile_inference(gm, examples, Recorded(), decompositions=TABLE, symbolic=True)
    for sizes in SIZES:
        check(gm.forward, call, lambda sizes=sizes: (R(*sizes),), views=False)
