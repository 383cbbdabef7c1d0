"""Traces and graphs with symbolic sizes that another process has cached: taken for all sizes that they hold for, without a
symbol, and never for others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.captures.processes import Outcome, run

HEAD = """
import sys
def at(f, sizes, grad=False, width=6, **options):
    compiled = dynamo.compile(f, **options)
    parameters = list(f.parameters()) if isinstance(f, nn.Module) else []
    found = []
    for size in sizes:
        x = torch.randn(*(size if isinstance(size, tuple) else (size, width)), requires_grad=grad)
        given = [x, *parameters]
        with torch.set_grad_enabled(grad):
            pair = [g(x) for g in (compiled, f)]
            if grad:
                pair = [[y, *torch.autograd.grad(y.square().mean(), given)] for y in pair]
        found.append(tuple(pair))
    if "dynamo.shapes.symbolic" in sys.modules:
        print("symbols were made", file=sys.stderr)
    return found
"""
MODEL = HEAD + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
    def forward(self, x):
        y = F.gelu(self.norm(self.inner(x)))
        return y * x.T.contiguous().T + x.mean(1, keepdim=True)
def run():
    torch.manual_seed(0)
    return at(Model(), SIZES, grad=GRAD, OPTIONS)
"""


def both(folder: Path, source: str, *sizes: list[int], options: str = "dynamic=True", grad: bool = False) -> list[Outcome]:
    """One process after the other, with these sizes."""
    text = source.replace("GRAD", str(grad)).replace("OPTIONS", options)
    return [run(folder, text.replace("SIZES", str(each)), kernels=True) for each in sizes]


def made_symbols(outcome: Outcome) -> bool:
    assert not outcome.defects
    return "symbols were made" in outcome.said


@pytest.mark.parametrize("grad", [False, True])
def test_another_process_takes_it_for_other_sizes(grad: bool, tmp_path: Path) -> None:
    first, second, other = both(tmp_path, MODEL, [5, 9], [5, 9], [7, 12], grad=grad)
    assert (first.reused, first.traced) == (0, 1) and made_symbols(first)
    for each in (second, other):
        assert (each.reused, each.traced) == (1, 0)
        assert not made_symbols(each)
        assert re.search(r"graph \w+: found", each.said)
    assert ("backward" in second.said) == grad


def test_sizes_that_become_symbols_at_the_second_call(tmp_path: Path) -> None:
    first, second = both(tmp_path, MODEL, [5, 9, 12], [5, 7, 11], options="", grad=True)
    assert first.traced == 2
    assert (second.reused, second.traced) == (2, 0) and not made_symbols(second)


def test_sizes_of_0_and_1_are_traced(tmp_path: Path) -> None:
    _, second, third = both(tmp_path, MODEL, [5], [1, 0, 5], [1, 0, 5])
    assert second.traced >= 2
    assert (third.reused, third.traced) == (3, 0)


def test_a_marked_size(tmp_path: Path) -> None:
    source = """
def f(x):
    return F.softmax(x * 2, 0).sum(1)
def run():
    x = torch.randn(SIZE, 6)
    dynamo.mark_dynamic(x, 0)
    return [pair(f, x)]
"""
    found = [run(tmp_path, source.replace("SIZE", size), kernels=True) for size in ("5", "7")]
    assert [each.reused for each in found] == [0, 1]


# What a trace assumes of sizes: (result, sizes that fit the first trace, sizes that do not).
Sizes = list[tuple[int, int]]
ASSUMING: dict[str, tuple[str, Sizes, Sizes]] = {
    "greater": ("x * 2 if x.shape[0] > 8 else x - 1", [(9, 6), (30, 6)], [(8, 6), (2, 6)]),
    "multiple": ("x * 2 if x.shape[0] % 8 == 0 else x - 1", [(16, 6), (24, 6)], [(12, 6), (9, 6)]),
    "relation": ("x * 2 if x.shape[0] == 2 * x.shape[1] else x - 1", [(8, 4), (12, 6)], [(8, 5), (4, 8)]),
    "divides": ("x.reshape(-1, 4).sum(0)", [(4, 6), (8, 6)], [(8, 1), (8, 3)]),
    "square": ("x @ x if x.shape[0] == x.shape[1] else x.T @ x", [(4, 4), (5, 5)], [(4, 5), (5, 4)]),
}


@pytest.mark.parametrize("name", ASSUMING)
def test_what_was_assumed_is_asked(name: str, tmp_path: Path) -> None:
    body, fitting, others = ASSUMING[name]
    source = HEAD + f"""
def f(x):
    return ({body}) + x.shape[0]
def run():
    return at(f, [SIZES], dynamic=True)
"""
    first, second, other, *_ = [run(tmp_path, source.replace("SIZES", str(size)), kernels=True) for size in (*fitting, *others)]
    assert [each.reused for each in (first, second, other)] == [0, 1, 0]


@pytest.mark.parametrize("there, here", [
    ("x.contiguous()", "x.T.contiguous().T"), ("x", "x.double()"), ("x", "x[1:]"), ("x", "x.expand(4, *x.shape)[0]"),
])  # fmt: skip
def test_another_layout_is_right(there: str, here: str, tmp_path: Path) -> None:
    source = """
def f(x):
    return (x.view(-1) if x.is_contiguous() else x.sum(0)) * 2
def run():
    x = torch.randn(5, 6)
    compiled = dynamo.compile(f, dynamic=True)
    return [(compiled(GIVEN), f(GIVEN))]
"""
    for given in (there, here, here):
        last = run(tmp_path, source.replace("GIVEN", given), kernels=True)
    assert (last.reused, last.traced) == (1, 0)


def test_inputs_that_share_memory(tmp_path: Path) -> None:
    """The compiled graph writes into one of them."""
    source = """
def f(x, y):
    x.mul_(2)
    return x + y
def run():
    compiled = dynamo.compile(f, dynamic=True)
    found = []
    for g in (compiled, f):
        base = torch.arange(12.)
        x, y = GIVEN
        found.append([g(x, y), base])
    return [tuple(found)]
"""
    for given in ("base[:6], base[6:]", "base[:6], base[6:]", "base[:6], base[3:9]", "base[:5], base[7:]"):
        run(tmp_path, source.replace("GIVEN", given), kernels=True)


def test_another_program_is_a_miss(tmp_path: Path) -> None:
    first, second = [both(tmp_path, text, [5])[0] for text in (MODEL, MODEL.replace("F.gelu", "F.relu"))]
    assert [first.reused, second.reused] == [0, 0]


def test_a_number_that_changes(tmp_path: Path) -> None:
    source = """
def f(x, n):
    return x[:n] * n + x.shape[0]
def run():
    compiled = dynamo.compile(f)
    return [(compiled(x, n), f(x, n)) for x, n in [(torch.randn(9 + i, 3), i + 3) for i in NUMBERS]]
"""
    found = [run(tmp_path, source.replace("NUMBERS", numbers), kernels=True)
             for numbers in ("(0, 1, 2)", "(0, 1, 2)", "(2, 4, 1)")]
    assert [each.traced for each in found] == [2, 0, 1]  # the first call's sizes are constants


def test_a_backward_that_nobody_has_compiled_yet(tmp_path: Path) -> None:
    """It is made of rows, in a world of symbols of its own."""
    source = MODEL.replace("if grad:", "if grad and BACKWARD:")
    outcomes = [both(tmp_path, source.replace("BACKWARD", text), sizes, grad=True)[0]
                for text, sizes in (("False", [5, 9]), ("True", [7, 4]), ("True", [6, 8]))]
    assert [each.reused for each in outcomes] == [0, 1, 1]
    assert [made_symbols(each) for each in outcomes] == [True, True, False]


def test_a_backward_belongs_to_its_forward(tmp_path: Path) -> None:
    """A process that does not read the cache writes its own forward there, which may save other values for backward."""
    for sizes, reads in (([5], True), ([2000], False), ([5, 2000], True), ([7], True)):
        text = MODEL if reads else MODEL.replace(
            "def run():", "def run():\n    from dynamo.base import logs\n    logs.set_logs(fusion=True, cache=True)")
        last, = both(tmp_path, text, sizes, grad=True)
    assert (last.reused, last.traced) == (1, 0)
    names = {path.name for path in (tmp_path / "cache" / "backward").glob("*/*.graph")}
    assert len(names) == 2  # one of each of the two forwards


def test_other_classes_are_registered_with_abstract_ones(tmp_path: Path) -> None:
    """How many there are is another number in each process; answers count."""
    source = """
import abc
class Kind(abc.ABC): pass
class Other(abc.ABC): pass
class Plain: pass
class More: pass
BEFORE
def f(x, value):
    return x * 2 if isinstance(value, Kind) else x + 1
def run():
    return [pair(f, torch.ones(3), Plain())]
"""
    found = [run(tmp_path, source.replace("BEFORE", text)).reused
             for text in ("", "Other.register(More)", "Kind.register(Plain)", "Kind.register(Plain); Other.register(More)")]
    assert found == [0, 1, 0, 1]


def test_a_class_registered_behind_what_was_read(tmp_path: Path) -> None:
    """The frame is traced again, as in the process that wrote it."""
    source = """
import abc
class Kind(abc.ABC): pass
class Plain: pass
def f(x, value):
    return x * 2 if isinstance(value, Kind) else x + 1
def run():
    compiled, x, plain = dynamo.compile(f), torch.full((3,), 3.0), Plain()
    before = compiled(x, plain)
    Kind.register(Plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [([before, compiled(x, plain)], [torch.full((3,), 4.0), torch.full((3,), 6.0)])]
"""
    assert [run(tmp_path, "import warnings\n" + source).reused for _ in range(2)] == [0, 2]


STEP = """
def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    FIRST
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    step(torch.ones(2, 4))
    CHANGE
    return step, model

def run():
    (step, model), (eager, other) = make(), make()
    compiled = dynamo.compile(step)
    x = torch.arange(8.).view(2, 4)
    return [([compiled(x), compiled(x), list(model.parameters())], [eager(x), eager(x), list(other.parameters())])]
"""
CHANGES = {
    "rate": "optimizer.param_groups[0]['lr'] = 0.05",
    "decay": "optimizer.param_groups[0]['weight_decay'] = 0.",
    "flag": "optimizer.param_groups[0]['maximize'] = True",
    "parameter": "model[0].weight = nn.Parameter(torch.ones(4, 4))",
    "order": "optimizer.param_groups[0]['params'].reverse()",
    "state": "del optimizer.state[model[2].bias]",
    "order of state": "optimizer.state[model[0].weight] = optimizer.state.pop(model[0].weight)",
    "frozen": "model[0].bias.requires_grad_(False)",
}


def test_a_step_with_its_optimizer(tmp_path: Path) -> None:
    plain = STEP.replace("FIRST", "")
    found = [run(tmp_path, plain.replace("CHANGE", "")) for _ in range(2)]
    assert found[0].reused == 0
    assert (found[1].reused, found[1].traced) == (found[0].traced, 0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_with_another_optimizer(change: str, tmp_path: Path) -> None:
    """What the processes give is compared with eager; a constant of the trace that has changed is a miss."""
    for text in ("", CHANGES[change]):
        last = run(tmp_path, STEP.replace("FIRST", "").replace("CHANGE", text))
    assert last.traced >= (change != "rate")
