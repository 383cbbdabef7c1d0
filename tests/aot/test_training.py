"""Compiled training: values, gradients, buffers and errors are eager's."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from dynamo import aot
from dynamo.aot.min_cut import min_cut, save_all
from tests.aot.programs import captured, traced


def interpret(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
    return module.forward


def compiler(
    seen: list[Any], cut: Any = min_cut, decompositions: Any = None
) -> Callable[..., Any]:
    """A backend that counts what it compiled."""

    def compile_graph(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        call = aot.compile_training(
            gm, examples, interpret, interpret, partition=cut, decompositions=decompositions
        )
        seen.append(call)
        return call

    return compile_graph


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        return x + self.out(y.transpose(1, 2).reshape(2, 5, 8))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6, padding_idx=2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(torch.tanh(self.embed(ids))), ids)


class Loss(nn.Module):
    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.net(x), x.detach().sigmoid())


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(F.gelu(self.a(x)), 0.5)
        return F.dropout(self.b(y), 0.3) + torch.rand_like(x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 3))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 1),
        nn.GroupNorm(2, 4),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
        nn.LogSoftmax(-1),
    )


def R(*size: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*size, dtype=torch.float64)


NETS: list[tuple[str, Callable[[], nn.Module], Callable[[], torch.Tensor]]] = [
    ("mlp", mlp, R(5, 4)),
    ("conv", conv_net, R(2, 2, 8, 8)),
    ("attention", Attention, R(2, 5, 8)),
    ("tied", Tied, lambda: torch.randint(11, (7,))),
    ("dropout", Dropout, R(5, 4)),
    ("mse", lambda: Loss(nn.MSELoss()), R(3, 4)),
    ("smooth l1", lambda: Loss(nn.SmoothL1Loss()), R(3, 4)),
    ("huber", lambda: Loss(nn.HuberLoss()), R(3, 4)),
    ("bce logits", lambda: Loss(nn.BCEWithLogitsLoss()), R(3, 4)),
    ("kl", lambda: Loss(nn.KLDivLoss(reduction="batchmean")), R(3, 4)),
    ("upsample", lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=2)), R(1, 1, 4, 4)),
    ("encoder", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), R(2, 5, 8)),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["min_cut", "save_all", "decomposed"])
@pytest.mark.parametrize("make, data", [row[1:] for row in NETS], ids=[row[0] for row in NETS])
def test_nets(make: Any, data: Any, mode: str) -> None:
    seen: list[Any] = []
    eager = make().double()
    other = copy.deepcopy(eager)
    table = aot.default_decompositions() if mode == "decomposed" else None
    backend = compiler(seen, save_all if mode == "save_all" else min_cut, table)
    compiled = dynamo.compile(other, backend=backend)
    for _ in range(2):
        x = data()
        ours, theirs = x.clone(), x.clone()
        if x.is_floating_point():
            ours.requires_grad_()
            theirs.requires_grad_()
        state = torch.get_rng_state()
        expected = eager(theirs)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        actual = compiled(ours)
        assert torch.equal(after, torch.get_rng_state())
        assert expected.stride() == actual.stride()
        torch.testing.assert_close(actual, expected)
        weight = torch.randn_like(expected)
        (expected * weight).sum().backward()
        (actual * weight).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
        compare_states(eager, other)
    assert seen


def compare_states(eager: nn.Module, other: nn.Module) -> None:
    for (name, want), got in zip(eager.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, msg=lambda text, n=name: f"{n}: {text}")
        assert got.grad is None or got.grad.stride() == want.grad.stride()
    for want, got in zip(eager.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(got, want)


def train(function: Any, examples: list[Any], **options: Any) -> Callable[..., Any]:
    return aot.compile_training(traced(function), examples, interpret, interpret, **options)


def leaf(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


def both(function: Any, make: Callable[[], list[torch.Tensor]], use: Any, **options: Any) -> None:
    """Runs a function and its compiled form, uses their outputs, and compares inputs' gradients."""
    call = train(function, make(), **options)
    for _ in range(2):
        mine = make()
        theirs = [x.detach().clone().requires_grad_(x.requires_grad) for x in mine]
        used = [use(*out) if isinstance(out, tuple) else use(out) for out in (call(*mine), function(*theirs))]
        torch.testing.assert_close(used[0], used[1])
        for value in used:
            value.backward()
        for x, y in zip(mine, theirs, strict=True):
            torch.testing.assert_close(x, y)
            torch.testing.assert_close(x.grad, y.grad)


def test_outputs_that_are_views() -> None:
    def program(x: Any, y: Any) -> Any:
        z = x * y
        z.add_(1)
        return z[0], z.t(), x.view(-1), y, x[1]

    both(
        program,
        lambda: [leaf(3, 3), leaf(3, 3)],
        lambda a, b, c, d, e: (a.sin().sum() * b.cos()).sum() + (c * c).sum() + (d * 2).sum() + e.sum(),
    )


def test_writing_into_an_output_view_reaches_its_base() -> None:
    def program(x: Any) -> Any:
        z = x.sin()
        return z, z[0]

    def use(z: Any, row: Any) -> Any:
        row.mul_(2)
        return (z * z).sum()

    both(program, lambda: [leaf(3, 3)], use)


def test_outputs_that_are_not_used() -> None:
    both(lambda x, y: (x * y, y.exp()), lambda: [leaf(3), leaf(3)], lambda a, b: a.sum())


def test_outputs_that_are_not_used_give_no_gradient_and_no_nan() -> None:
    def program(x: Any, y: Any, z: Any) -> Any:
        h = x * y
        return h.sum(), x.log() * z, torch.cat([h.flatten(), z]), torch.stack([h.sum(), z.sum()])

    def make(first: float) -> list[torch.Tensor]:
        x = leaf(4)
        x.data.abs_()[0] = first
        return [x, leaf(4), leaf(4)]

    for first, use in (  # where x is 0 the gradient of log is inf
        (0.0, lambda a, b, c, d: a.sin()),
        (0.0, lambda a, b, c, d: a + d[1]),
        (0.0, lambda a, b, c, d: (c * c).sum()),
        (1.0, lambda a, b, c, d: b.sum() + c.sum()),
        (1.0, lambda a, b, c, d: a + (b * c[:4]).sum() + d.prod()),
    ):
        both(program, lambda first=first: make(first), use)
        both(
            program, lambda first=first: make(first), use,
            decompositions=aot.default_decompositions(),
        )


def test_gradients_without_an_unused_output_are_two_tensors() -> None:
    x, y = leaf(4), leaf(4)
    call = train(lambda x, y: ((x + y) * 3, x.exp()), [x, y])
    call(x, y)[0].sin().sum().backward()
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(x.grad, y.grad)
    kept = y.grad.clone()
    x.grad.add_(1)
    torch.testing.assert_close(y.grad, kept)


def test_gradients_that_come_expanded_or_transposed() -> None:
    both(lambda x: x.sin(), lambda: [leaf(3, 4)], lambda a: a.sum())
    both(lambda x: x.sin(), lambda: [leaf(3, 4)], lambda a: (a.t() @ torch.ones(3, 2).double()).sum())


def test_outputs_without_gradient() -> None:
    call = train(lambda x: (x * 2, x.argmax(), x.detach() + 1, x > 0), [leaf(4)])
    a, b, c, d = call(leaf(4))
    assert a.requires_grad and a.grad_fn is not None
    assert not any(out.requires_grad for out in (b, c, d))


def test_gradients_of_one_value_are_two_tensors() -> None:
    x, y = leaf(4), leaf(4)
    train(lambda x, y: x.view(2, 2) + y.view(2, 2), [leaf(4), leaf(4)])(x, y).sum().backward()
    assert x.grad.untyped_storage()._cdata != y.grad.untyped_storage()._cdata


def test_some_inputs_without_gradient() -> None:
    both(
        lambda x, y, z: x * y + z.detach(),
        lambda: [leaf(3), torch.ones(3).double(), leaf(3)],
        lambda a: a.sum(),
    )


def test_no_grad_regions() -> None:
    def program(x: Any) -> Any:
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale

    gm, examples = captured(program, leaf(4))
    call = aot.compile_training(gm, examples, interpret, interpret)
    x = leaf(4)
    y = x.detach().clone().requires_grad_()
    (call(x)[0] ** 2).sum().backward()
    (program(y) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_buffers_are_written() -> None:
    def program(x: Any, total: Any) -> Any:
        total.add_(x.detach().sum())
        return x * total

    make = lambda: [leaf(3), torch.zeros(3).double()]
    both(program, make, lambda a: a.sum())


def test_backward_again_with_retained_graph() -> None:
    x = leaf(3)
    out = train(lambda x: x.sin(), [leaf(3)])(x).sum()
    out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_backward_is_compiled_when_first_called() -> None:
    seen = []

    def backward(module: Any, fakes: list[Any]) -> Any:
        seen.append(len(fakes))
        return module.forward

    call = aot.compile_training(traced(lambda x: x.sin()), [leaf(3)], interpret, backward)
    outs = [call(leaf(3)).sum() for _ in range(2)]
    assert not seen
    for out in outs:
        out.backward()
    assert seen == [2]


def second_derivatives(run: Any, *inputs: torch.Tensor) -> list[Any]:
    """Gradients of a penalty on gradients, through an input that has a history of its own."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    first = leaves[0] * 2
    value, other = run(first, *leaves[1:])
    (grad,) = torch.autograd.grad(value.sum() + (other * 3).sum(), first, create_graph=True)
    loss = grad.square().sum() + value.mean()
    loss.backward()
    return [grad.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize("program", [
    lambda x, w, k: ((x * w).sin() @ w.T, (x * k).exp()),
    lambda x, w, k: (x.t() + k, torch.nn.functional.layer_norm(x * w, (3,))),
    lambda x, w, k: (x.sum() * w, (x * 2).view(-1)[1:]),
])
def test_double_backward(program: Any) -> None:
    def inputs() -> list[torch.Tensor]:
        return [torch.rand(3, 3).double().requires_grad_(n < 2) for n in range(3)]

    call = train(program, inputs())
    for _ in range(2):
        given = inputs()
        torch.testing.assert_close(second_derivatives(call, *given), second_derivatives(program, *given))


@pytest.mark.parametrize("case", ["history", "hook"])
def test_gradients_of_gradients_stop_at_the_inputs(case: str) -> None:
    """An input made of another one counts once, and the hook of an input runs once."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x * y * y).sin(),)

    def run(call: Any, start: torch.Tensor) -> list[Any]:
        x = start.clone().requires_grad_()
        if case == "hook":
            x.register_hook(lambda grad: grad * 3)
        (grad,) = torch.autograd.grad(call(x, x.exp())[0].sum(), x, create_graph=True)
        grad.square().sum().backward()
        return [grad.detach(), x.grad]

    start = torch.rand(3).double()
    call = train(program, [leaf(3), leaf(3)])
    torch.testing.assert_close(run(call, start), run(program, start))


@pytest.mark.parametrize("program", [
    lambda x: torch.nanmedian(x), lambda x: (F.softmax(x, -1).norm(), x * 2), lambda x: torch.cat([x * 2, x.tanh()]),
    lambda x: x.exp_(), lambda x: x.mul_(3).exp_(),
])  # fmt: skip
@pytest.mark.parametrize("learned", [False, True])
def test_which_gradients_of_gradients_there_are(program: Any, learned: bool) -> None:
    """learned: what comes from above requires a gradient, too."""

    def run(call: Any) -> Any:
        start = torch.linspace(0.1, 0.9, 9, requires_grad=True)
        made = torch.utils._pytree.tree_leaves(call(start * 1))
        above = [torch.ones_like(x).requires_grad_(learned) for x in made]
        grads = torch.autograd.grad(made, start, above, create_graph=True)
        told = [(grad.requires_grad, grad.grad_fn is None) for grad in grads]
        writes = program.__code__.co_names[-1].endswith("_")  # such are refused
        if grads[0].requires_grad and not writes:
            leaves = [start, *above] if learned else [start]
            grads = torch.autograd.grad(grads, leaves, [torch.ones_like(start)], create_graph=True, allow_unused=True)
            told += [grad is not None and (grad.requires_grad, grad.grad_fn is None) for grad in grads]
        return told

    assert run(dynamo.compile(program)) == run(program)


@pytest.mark.parametrize("case", ["random", "changed"])
def test_double_backward_is_refused(case: str) -> None:
    x, k = leaf(3), torch.ones(3).double()
    program = (lambda x, k: F.dropout(x.sin(), 0.1) + k) if case == "random" else (lambda x, k: x.sin() + k)
    out = train(program, [leaf(3), k])(x, k).sum()
    if case == "changed":
        k.add_(1)
    (grad,) = torch.autograd.grad(out, x, create_graph=True)
    if case != "random":
        torch.testing.assert_close(grad.detach(), x.detach().cos())
    with pytest.raises(RuntimeError, match='differentiated again.*backend="eager"'):
        torch.autograd.grad(grad.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match='differentiated again.*backend="eager"'):
        grad.sum().backward()


@pytest.mark.parametrize("program", [lambda t: (t.sin() + 1).cos(), lambda t: t.tanh()])
def test_gradients_of_gradients_need_inputs_that_have_died(program: Any) -> None:
    """Nothing of the program holds the input; derivatives of every order are right."""

    def run(call: Any, start: torch.Tensor, order: int) -> torch.Tensor:
        x = start.clone().requires_grad_()
        grad = call(x * 2)[0]
        for _ in range(order):
            (grad,) = torch.autograd.grad(grad.sum(), x, create_graph=True)
        return grad.detach()

    call, start = train(lambda t: (program(t),), [leaf(3)]), torch.rand(3).double()
    for order in (1, 2, 3, 4):
        expected = run(lambda t: (program(t),), start, order)
        torch.testing.assert_close(run(call, start, order), expected)


def test_high_derivatives_through_kept_results_pass_their_hooks() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * y).tanh(), (x + y).exp() * x, x.sigmoid()

    def run(call: Any, start: torch.Tensor) -> list[torch.Tensor]:
        x, y = (t.clone().requires_grad_() for t in (start, start.flip(0)))
        results = call(x, y)
        seen: list[torch.Tensor] = []
        results[0].register_hook(lambda grad: seen.append(grad.detach()))
        loss = sum((result * (n + 1)).sum() for n, result in enumerate(results))
        for _ in range(4):
            found = torch.autograd.grad(loss, (x, y), create_graph=True)
            seen += [grad.detach() for grad in found]
            loss = sum(grad.sin().sum() for grad in found)
        return seen

    start = torch.rand(3).double()
    torch.testing.assert_close(run(train(program, [leaf(3), leaf(3)]), start), run(program, start))


def test_inputs_kept_for_second_derivatives_die_with_the_graph() -> None:
    call = train(lambda t: ((t + 1).sin(),), [leaf(3)])
    x = leaf(3)
    held = x * 2
    out = call(held)[0]
    watch = weakref.ref(held)
    del held
    assert watch() is not None
    out.sum().backward()
    assert watch() is None


def changed_between(program: Any, change: Any) -> None:
    """Writing into what eager saved is eager's error; writing into anything else is none."""
    call = train(program, [leaf(3), leaf(3)])
    failed = []
    grads = []
    state = torch.get_rng_state()
    for function in (program, call):
        torch.set_rng_state(state)
        x, y = leaf(3), leaf(3)
        out = function(x, y)
        with torch.no_grad():
            change(x, y, out)
        try:
            out.sum().backward()
            failed.append("")
        except RuntimeError as error:
            failed.append(str(error))
        grads.append((x.grad, y.grad))
    assert bool(failed[0]) == bool(failed[1])
    if failed[0]:
        assert "modified by an inplace operation" in failed[1]
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("change", [lambda x, y, z: x.zero_(), lambda x, y, z: y.zero_(), lambda x, y, z: z.zero_()])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: x * y,
        lambda x, y: ((x + 1) * 3).sin() * y,
        lambda x, y: (x + y).exp(),
        lambda x, y: (x * y).sin() + y,
        lambda x, y: torch.sigmoid(x.view(3, 1)).view(3) + y * 2,
        lambda x, y: (x / y).relu() * 2,
    ],
)
def test_writing_between_forward_and_backward(program: Any, change: Any) -> None:
    changed_between(program, change)


def halves(function: Any, examples: list[Any], cut: Any) -> tuple[Any, Any]:
    found: list[Any] = []

    def keep(module: Any, fakes: list[Any]) -> Any:
        found.append(module)
        return module.forward

    call = aot.compile_training(traced(function), examples, keep, keep, partition=cut)
    call(*examples).sum().backward()
    return found[0], found[1]


def operations(module: torch.fx.GraphModule) -> list[str]:
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    return [str(node.target) for node in nodes]


def saved_bytes(module: torch.fx.GraphModule, inputs: int) -> int:
    names = [node for node in module.graph.nodes if node.op == "placeholder"]
    return sum(node.meta["val"].facts.nbytes for node in names[inputs:])


def test_cheap_operations_are_recomputed_and_others_are_not() -> None:
    def program(x: Any, w: Any) -> Any:
        y = torch.mm(x, w)
        z = (y * 2).sin().cos()
        return F.dropout(z, 0.5).sum()

    examples = [leaf(8, 8), leaf(8, 8)]
    forward, backward = halves(program, examples, min_cut)
    _, plain = halves(program, examples, save_all)
    assert operations(backward).count("aten.mm.default") == 2
    assert "aten.bernoulli.p" in operations(forward)
    assert not any("bernoulli" in name for name in operations(backward))
    assert "aten.sin.default" in operations(backward)
    assert saved_bytes(backward, 0) < saved_bytes(plain, 0)


@pytest.mark.parametrize("grad", [False, True])
def test_inputs_that_get_a_history(grad: bool) -> None:
    def program(x: Any, y: Any) -> Any:
        x.sin_().mul_(y)
        return x.sum(), x[0]

    call = train(program, [leaf(3) * 1 if grad else torch.ones(3).double(), leaf(3)])
    start, y = leaf(3), leaf(3)
    grads = []
    for function in (call, program):
        x = start * 1 if grad else start.detach().clone()
        total, first = function(x, y)
        assert x.requires_grad and x.grad_fn is not None
        (total * x.exp().sum() * first).backward()
        grads.append((start.grad, y.grad))
        start.grad = y.grad = None
    torch.testing.assert_close(grads[0], grads[1])
    assert (grads[0][0] is not None) == grad


def test_writing_into_a_view_with_gradient_is_refused() -> None:
    with pytest.raises(aot.Unsupported):
        train(lambda x, y: x.mul_(y) + 1, [(leaf(3, 3) * 1)[0], leaf(3)])


def test_attribute_with_gradient_is_refused() -> None:
    gm = traced(lambda x: x * torch.ones(3))
    gm.weight = nn.Parameter(leaf(3))
    node = next(iter(gm.graph.nodes))
    with gm.graph.inserting_after(node):
        weight = gm.graph.get_attr("weight")
    output = list(gm.graph.nodes)[-1]
    with gm.graph.inserting_before(output):
        output.args = (gm.graph.call_function(torch.mul, (node, weight)),)
    gm.recompile()
    for examples in ([leaf(3)], [torch.ones(3).double()]):
        with pytest.raises(aot.Unsupported):
            aot.compile_training(gm, examples, interpret, interpret)


def test_without_gradients_it_is_inference() -> None:
    call = train(lambda x: (x.sin(),), [torch.ones(3)])
    torch.testing.assert_close(call(torch.ones(3))[0], torch.ones(3).sin())


def test_the_gradient_of_one_output_has_the_strides_of_eager() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, torch.fft.rfft(x, dim=0)

    strides = []
    for function in (program, dynamo.compile(program)):
        x = torch.randn(4, 6, requires_grad=True)
        function(x)[0].sin().sum().backward()
        assert x.grad is not None
        strides.append(x.grad.stride())
    assert strides[0] == strides[1] == (6, 1)


def test_the_joint_graph_is_let_go() -> None:
    """Once both halves are taken from it."""
    joints = []

    def cut(joint: Any, *rest: Any) -> Any:
        joints.append(weakref.ref(joint.module))
        return min_cut(joint, *rest)

    f = dynamo.compile(lambda x: (x.sin() * x).sum(), backend=compiler([], cut))
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        f(x).backward()
    gc.collect()
    assert joints and all(joint() is None for joint in joints)


class Accumulates(torch.autograd.Function):
    """Its backward adds to memory that the program has written too."""

    @staticmethod
    def forward(ctx: Any, memory: Any, total: Any, last: Any) -> Any:
        ctx.total = total
        return memory * last

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        ctx.total += grad
        return None, None, grad * ctx.total


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_backward_writes_into_an_input_that_forward_writes(backend: str) -> None:
    def f(memory: Any, total: Any, last: Any) -> Any:
        total.mul_(0.5)
        return Accumulates.apply(memory, total, last).sin()

    results = []
    for run in (f, dynamo.compile(f, backend=backend)):
        torch.manual_seed(0)
        memory, total, last = torch.rand(3), torch.rand(3), torch.rand(3, requires_grad=True)
        for _ in range(3):
            with dynamo.config.patch(suppress_errors=False):
                out = run(memory, total, last)
            out.sum().backward()
        results.append((out.detach(), total, last.grad))
    torch.testing.assert_close(*results)
