"""Equal kernels over lists of tensors, in the interpreter: few launches, and eager's meaning."""

from __future__ import annotations

import interpreted_programs
import pytest
import torch
from interpreted_programs import interpreted, texts
from interpreter_repairs import repair
from torch.optim import ASGD, SGD, Adam, AdamW, NAdam, RMSprop, Rprop, adam, nadam, rmsprop

import dynamo
from dynamo.aot.fakes import is_fake
from inductor.codegen.triton import print_list
from inductor.config import config
from inductor.fx_passes import host_numbers
from inductor.fx_passes.parts import read_parts
from inductor.runtime.list_launches import over
from inductor.runtime.triton_launch import Preparation
from inductor.scheduler import lists

SHAPES = [(16, 8)] * 5 + [(5, 7)] * 5 + [(24,)] * 2
TINY = {(print_list, "BLOCK"): 32, (print_list, "MANY_PROGRAMS"): 1}
WIDE = {(lists, "MOST_INT32"): 64, (print_list, "MOST_INT32"): 64}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    for module in (adam, nadam, rmsprop):
        monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *args, **kwargs: ["cpu"])


def launches(text: str) -> int:
    return text.count("(stream, ")


def parameters(shapes=SHAPES):
    torch.manual_seed(0)
    found = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for one in found:
        one.grad = torch.randn_like(one) * 0.1
    return found


def by_optimizer(kind, **options):
    def make(params):
        made = kind(params, **options)
        return lambda: made.step()

    return make


def lion(params):
    means = [torch.zeros_like(one) for one in params]

    @torch.no_grad()
    def step():
        grads = [one.grad for one in params]
        update = torch._foreach_mul(means, 0.9)
        torch._foreach_add_(update, grads, alpha=0.1)
        torch._foreach_sign_(update)
        torch._foreach_mul_(params, 0.999)
        torch._foreach_add_(params, update, alpha=-0.01)
        torch._foreach_lerp_(means, grads, 0.01)

    return step


def averages(params):
    means = [one.detach().clone() for one in params]
    return lambda: torch._foreach_lerp_(means, [one.detach() for one in params], 0.1)


def clipped(params):
    return lambda: torch.nn.utils.clip_grad_norm_(params, 0.5, foreach=True)


CASES = {
    "adamw": (by_optimizer(AdamW, foreach=True, capturable=True), 3),
    "adamw_alone": (by_optimizer(AdamW, foreach=False, capturable=True), 4),
    "adamw_fused": (by_optimizer(AdamW, fused=True), 3),
    "adam": (by_optimizer(Adam, lr=torch.tensor(1e-3), foreach=True, capturable=True, amsgrad=True,
                          weight_decay=0.1), 3),
    "sgd": (by_optimizer(SGD, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True), 2),
    "rmsprop": (by_optimizer(RMSprop, foreach=True, capturable=True), 3),
    "nadam": (by_optimizer(NAdam, foreach=True, capturable=True), 4),
    "rprop": (by_optimizer(Rprop, foreach=True), 3), "asgd": (by_optimizer(ASGD, foreach=True), 4),
    "lion": (lion, 2), "averages": (averages, 2), "clipped": (clipped, 4),
}  # fmt: skip


def check_steps(make) -> None:
    mine, others = parameters(), parameters()
    step, plain = dynamo.compile(make(mine), backend=interpreted), make(others)
    for turn in range(4):
        for one, other in zip(mine, others, strict=True):
            one.grad = one.grad + 0.01 * turn
            other.grad = other.grad + 0.01 * turn
        torch.testing.assert_close(step(), plain(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mine, others, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close([x.grad for x in mine], [x.grad for x in others])


@pytest.mark.parametrize("limits", [{}, TINY | WIDE], ids=["default", "low"])
@pytest.mark.parametrize("name", CASES)
def test_steps(name, limits, monkeypatch) -> None:
    """As many launches for any number of tensors; the gradients' addresses change."""
    for (module, limit), value in limits.items():
        monkeypatch.setattr(module, limit, value)
    make, most = CASES[name]
    check_steps(make)
    assert launches(texts[-1]) <= most
    # What is clipped here is so small that one program scales it all behind the norm.
    tiled = bool(limits) and name != "clipped"
    assert ("for tile in range(0, 4)" in texts[-1]) == tiled


@pytest.mark.parametrize("kind", [AdamW, Adam, RMSprop, NAdam])
@pytest.mark.parametrize("foreach", [True, False])
def test_counters_of_the_host(kind, foreach, monkeypatch) -> None:
    """Numbers, and what has dimensions, as if they were on two devices: two calls beside the launches."""
    monkeypatch.setattr(host_numbers, "_is_on_gpu", lambda node: is_fake(node.meta.get("val")) and node.meta["val"].dim() > 0)
    monkeypatch.setattr(interpreted_programs, "read_parts", lambda module: read_parts(host_numbers.compute_numbers_on_gpu(module)))
    check_steps(by_optimizer(kind, foreach=foreach))
    assert launches(texts[-1]) <= 3
    assert texts[-1].count("OperatorCall(") == 1 + (kind is not RMSprop)
    written_by = "compute_numbers_" if kind is NAdam else "add_to_numbers_"
    assert written_by in texts[-1] and ("numbers_on" in texts[-1]) == (kind is not RMSprop)


def chain_of_writes(xs, ys):
    """Each tensor needs the one before."""
    for x, y in zip(xs[1:], xs, strict=False):
        x.add_(y.flip(0))
    return [x * 2 for x in xs]


def swapped(xs, ys):
    for x, y in zip(xs, ys, strict=True):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)


def read_before_and_behind(xs, ys):
    before = [x.exp() for x in xs]
    for x, y in zip(xs, ys, strict=True):
        x.add_(y)
    behind = [x * y for x, y in zip(xs, ys, strict=True)]
    for x in xs:
        x.mul_(2.0)
    return before, behind, [x - 1 for x in xs]


def overwritten_unread(xs, ys):
    """What is stored is not computed from what is overwritten."""
    old = [x.sin() for x in xs]
    torch._foreach_copy_(xs, ys)
    return old


def scalars(xs, ys):
    totals = [x.sum() for x in xs]
    return [total * 2 + 1 for total in totals], [y * total for y, total in zip(ys, totals, strict=True)]


PROGRAMS = [chain_of_writes, swapped, read_before_and_behind, overwritten_unread, scalars]


def mixed():
    """Dtypes, strides, sizes and addresses of all kinds."""
    base = torch.randn(4000)
    return [
        base[1:129], base[200:328], base[331:459], base[500:628], base[701:829].view(16, 8),
        torch.randn(8, 16).t(), torch.randn(128).double(), torch.randn(128).bfloat16(),
        torch.randn(16, 8), torch.tensor(3.0), torch.randn(1, 1), torch.randn(0, 4), torch.randn(128),
    ]  # fmt: skip


def made(kind, seed):
    torch.manual_seed(seed)
    if kind == "mixed":
        return mixed(), mixed()
    xs, ys = ([torch.randn(16, 8) for _ in range(12)] for _ in range(2))
    if kind == "twice":
        ys[3], ys[5] = ys[7], xs[4]
    if kind == "gaps":
        xs = [torch.randn(16, 2, 8)[:, 1] for _ in xs]
    return xs, ys


@pytest.mark.parametrize(("program", "kind"), [
    *((program, kind) for program in PROGRAMS for kind in ("equal", "twice")),
    *((program, "mixed") for program in PROGRAMS[1:]), (swapped, "gaps"), (scalars, "gaps"),
])
def test_meaning(program, kind) -> None:
    compiled = dynamo.compile(program, backend=interpreted)
    for seed in range(3):
        mine, others = made(kind, seed), made(kind, seed)
        tolerance = 1e-2 if kind == "mixed" else 1e-5  # of bfloat16
        torch.testing.assert_close(compiled(*mine), program(*others), rtol=tolerance, atol=1e-5)
        torch.testing.assert_close(mine, others)


def test_kernels_that_need_each_other_stay_apart() -> None:
    xs = [torch.randn(16, 8) for _ in range(6)]
    dynamo.compile(chain_of_writes, backend=interpreted)(xs, xs)
    assert launches(texts[-1]) >= 5


@pytest.mark.parametrize(("program", "count"), [
    (lambda x: (x.view(torch.int32) + 1, x.mul_(2))[0], 2),  # a view of what is written, by another name
    (lambda x: (x[::2] + 1, x.mul_(2))[0], 2), (lambda x: (x + 1, x.mul_(2))[0], None), (lambda x: (x + 1, x[:3] * 2), 1)])
def test_small_kernels_that_need_each_other_stay_apart(program, count) -> None:
    x = torch.randn(64)
    given, other = x.clone(), x.clone()
    torch.testing.assert_close(dynamo.compile(program, backend=interpreted)(given), program(other))
    torch.testing.assert_close(given, other)
    assert count in (None, launches(texts[-1]))


def test_lists_can_be_left_out(monkeypatch) -> None:
    """By an option; and where they would hold much more memory, where small ones are a launch all the same."""
    def scaled(xs):
        return [x * 2 for x in xs]

    xs = [torch.randn(n, 8) for n in range(2, 10)]
    counts = []
    for options, limits in (({}, {}), ({"leave_out": "lists"}, {}), ({}, {"MOST_HELD": 0, "LITTLE": -1})):
        dynamo.reset()
        for name, value in limits.items():
            monkeypatch.setattr(lists, name, value)
        with config.patch(**options):
            dynamo.compile(scaled, backend=interpreted)(xs)
        counts.append(launches(texts[-1]))
    assert counts == [2, 8, 1]


def test_a_table_stays_while_addresses_do() -> None:
    class Function:
        def __getitem__(self, grid):
            return lambda *tensors, **options: called.append((options["IS_ALIGNED"], tensors))

    called: list = []
    launchers = [
        Preparation(torch.device("cpu")).prepare(
            Function(), ((0, 0, 1),), (torch.int64, torch.int32), (), False, False,
            options={"IS_ALIGNED": aligned, "num_warps": 1})
        for aligned in (True, False)
    ]  # fmt: skip
    call = over(*launchers, (8, 20), 16, 2, (0,))
    xs = [torch.randn(64) for _ in range(4)]
    for tensors in (xs, xs, [xs[0], xs[1][1:], *xs[2:]], [xs[0][1:], *xs[1:]], xs[::-1]):
        call(0, *tensors)
        assert called[-1][1][0].tolist() == [x.data_ptr() for x in tensors]
    assert [aligned for aligned, _ in called] == [True, True, True, False, True]
    tables = [tensors[0] for _, tensors in called]
    assert tables[0] is tables[1] and tables[1] is not tables[2] and call.table is tables[-1]
    assert called[0][1][1].tolist() == [[0, 0, 8], [1, 0, 20], [1, 1, 20]]
    with pytest.raises(TypeError, match="2 tensors of each kernel"):
        call(0, *xs[:3])
    with pytest.raises(TypeError, match="argument 1 of a list is no tensor"):
        call(0, xs[0], 3)
