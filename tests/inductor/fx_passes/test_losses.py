"""Losses over large vocabularies in chunks of rows: values, gradients, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.aot.partition import partition_joint
from inductor import config
from inductor.driver import from_aten
from inductor.fx_passes.losses import chunks, sizes
from inductor.fx_passes.losses.regions import is_tensor, size_of
from inductor.scheduler.peak import peak_of

ROWS, TERMS, COLUMNS, AT_ONCE = 64, 24, 500, 16
cross_entropy = F.cross_entropy


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> Iterator[None]:
    monkeypatch.setitem(sizes.FEWEST_BYTES, "cpu", ROWS * COLUMNS)
    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", 1)
    monkeypatch.setitem(sizes.FEWEST_ROWS, "cpu", AT_ONCE)
    monkeypatch.setattr(sizes, "EVEN", 1)
    monkeypatch.setattr(chunks, "is_native", lambda dtype: False)
    with config.patch(graph_cache=False):
        yield


@pytest.fixture
def changed(monkeypatch) -> list[bool]:
    """For each GEMM that might be the logits, whether it was replaced."""
    found: list[bool] = []
    rewrite = chunks._rewrite
    monkeypatch.setattr(chunks, "_rewrite", lambda *given: found.append(rewrite(*given)) or found[-1])
    return found


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    h, w = torch.randn(ROWS, TERMS), torch.randn(COLUMNS, TERMS) / 2
    y = torch.randint(0, COLUMNS, (ROWS,))
    y[5] = 3
    return h.to(dtype), w.to(dtype), y


def by_sequence(h, w, y):
    return F.linear(h.view(4, -1, TERMS), w), y.view(4, -1)


def plain(h, w, y):
    return cross_entropy((h @ w.t()).float(), y)


def summed(h, w, y):
    return cross_entropy(h @ w.t(), y, reduction="sum")


def masked_mean(h, w, y):
    loss, mask = cross_entropy((h @ w.t()).float(), y, reduction="none"), (y > 10).float()
    return (loss * mask).sum() / mask.sum()


def smoothed(h, w, y):
    return cross_entropy(h @ w.t(), y, label_smoothing=0.1, ignore_index=3)


def weighted(h, w, y):
    weight = torch.arange(1, COLUMNS + 1).float()
    return cross_entropy((h @ w.t()).float(), y, weight=weight, label_smoothing=0.2)


def capped(h, w, y):
    return cross_entropy(30 * torch.tanh((h @ w.t()).float() / 30), y)


def with_z_loss(h, w, y):
    z = (h @ w.t()).float()
    return cross_entropy(z, y) + 1e-2 * z.logsumexp(-1).pow(2).mean()


def biased(h, w, y):
    return cross_entropy(F.linear(h, w, w[:, 0]), y)


def shifted(h, w, y):
    z, y = by_sequence(h, w, y)
    z = 10 * torch.tanh(z / 10)[..., :-1, :]
    return cross_entropy(z.reshape(-1, COLUMNS), y[..., 1:].reshape(-1))


def shifted_copy(h, w, y):
    z, y = by_sequence(h, w, y)
    z = z.float()[:, :-1].contiguous()
    return cross_entropy(z.view(-1, COLUMNS), y[:, 1:].contiguous().view(-1))


def padded_labels(h, w, y):
    z, y = by_sequence(h, w, y)
    y = F.pad(y, (0, 1), value=-100)[..., 1:].contiguous()
    return cross_entropy(z.float().view(-1, COLUMNS), y.view(-1), ignore_index=-100)


def gathered(h, w, y):
    return -(h @ w.t()).log_softmax(-1).gather(1, y[:, None]).mean()


def other_weight(h, w, y):
    return cross_entropy(h @ w.t().contiguous(), y)


def soft_labels(h, w, y):
    goal = torch.softmax(torch.arange(COLUMNS).to(h.dtype) / 99, 0)
    return cross_entropy(h @ w.t(), goal.expand(ROWS, -1))


def with_entropy(h, w, y):
    z = (h @ w.t()).float().log_softmax(-1)
    return F.nll_loss(z, y) + 0.1 * (z.exp() * z).sum(-1).mean()


def with_accuracy(h, w, y):
    z = (h @ w.t()).float()
    return cross_entropy(z, y), (z.argmax(-1) == y).float().mean()


PROGRAMS = [plain, summed, masked_mean, smoothed, weighted, capped, with_z_loss, biased, shifted,
            shifted_copy, padded_labels, gathered, other_weight, soft_labels, with_entropy,
            with_accuracy]  # fmt: skip


def results(f, h, w, y, upstream=1.0):
    """Loss, and gradients."""
    h, w = h.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    loss = f(h, w, y)
    loss = loss[0] if isinstance(loss, tuple) else loss
    (loss * upstream).sum().backward()
    return [loss.detach().double(), h.grad.double(), w.grad.double()]


def errors(found, exact):
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_less_exact_than_eager(program, dtype, changed) -> None:
    given = inputs(dtype)
    exact = results(program, given[0].double(), given[1].double(), given[2], 3.0)
    eager, ours = results(program, *given, 3.0), results(dynamo.compile(program), *given, 3.0)
    assert changed == [True]
    epsilon = torch.finfo(dtype).eps
    for mine, theirs in zip(errors(ours, exact), errors(eager, exact), strict=True):
        assert mine < 1.05 * theirs + epsilon / 4
    with torch.no_grad():
        loss = dynamo.compile(program)(*given)
    assert changed == [True, True]
    torch.testing.assert_close(loss[0] if isinstance(loss, tuple) else loss, ours[0].to(dtype), atol=0, rtol=2 * epsilon, check_dtype=False)


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1e-3, 1e-3)


def returned(h, w, y):
    z = h @ w.t()
    return cross_entropy(z, y), z


def row_by_row(h, w, y):
    return cross_entropy(h @ w.t(), y, reduction="none")


def clipped(h, w, y):
    return cross_entropy(_Clipped.apply(h @ w.t()), y)


def perplexity(h, w, y):
    return cross_entropy(h @ w.t(), y).exp()


def two_losses(h, w, y):
    z = h @ w.t()
    return torch.stack([cross_entropy(z, y), z.logsumexp(-1).mean()])


def over_all_rows(h, w, y):
    z, y = by_sequence(h, w, y)
    return cross_entropy(z[:, :-1].reshape(-1, COLUMNS), y[:, 1:].reshape(-1)) + z.square().mean()


@pytest.mark.parametrize("program", [returned, row_by_row, clipped, perplexity, two_losses, over_all_rows])
def test_what_stays_whole(program, changed) -> None:
    given = inputs()
    upstream = torch.rand(ROWS) if program is row_by_row else 7.0
    eager, ours = results(program, *given, upstream), results(dynamo.compile(program), *given, upstream)
    assert changed and not any(changed)
    exact = results(program, given[0].double(), given[1].double(), given[2],
                    upstream.double() if isinstance(upstream, torch.Tensor) else upstream)
    for own, theirs in zip(errors(ours, exact), errors(eager, exact), strict=True):
        assert own <= 3 * theirs + 1e-6  # exp makes errors of the loss larger, by how much depends on the processor


def test_backward_again_and_of_gradients() -> None:
    h, w, y = inputs()
    h.requires_grad_(), w.requires_grad_()
    compiled = dynamo.compile(capped)
    for upstream in (1.0, 65536.0, -0.3):
        found, wanted = [], []
        for f, into in ((capped, wanted), (compiled, found)):
            loss = f(h, w, y)
            for scale in (upstream, upstream / 3):
                into += torch.autograd.grad(loss, (h, w), torch.tensor(scale), retain_graph=True)
            first = torch.autograd.grad(loss, (h, w), torch.tensor(upstream), create_graph=True)
            into += torch.autograd.grad(sum(g.square().sum() for g in first), (h, w))
        torch.testing.assert_close(found, wanted, atol=1e-5 * abs(upstream), rtol=2e-3)


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_gradients_of_one_operand(needed, changed) -> None:
    h, w, y = inputs()
    h.requires_grad_(needed[0]), w.requires_grad_(needed[1])
    wanted = [x for x in (h, w) if x.requires_grad]
    found = [torch.autograd.grad(f(h, w, y), wanted) for f in (plain, dynamo.compile(plain))]
    assert changed == [True]
    torch.testing.assert_close(found[1], found[0])


def _with_weights(h, w, y, weight):
    return cross_entropy((h @ w.t()).float(), y, weight=weight)


def _with_hidden(h, w, y, weight):
    h = h * 2
    return plain(h, w, y), h


@pytest.mark.parametrize("fixed", [None, 0, 1])
@pytest.mark.parametrize("program", [_with_weights, _with_hidden])
def test_writes_before_backward(program, fixed, changed) -> None:
    """They are errors where they are in eager: which operand gets no gradient matters."""
    for written in range(5):
        outcomes = []
        for f in (program, dynamo.compile(program)):
            given = [*inputs(), torch.rand(COLUMNS)]
            for at in {0, 1} - {fixed}:
                given[at].requires_grad_()
            loss = f(*given)
            loss, *others = loss if isinstance(loss, tuple) else (loss,)
            with torch.no_grad():
                target = [*given, *others][written] if written < 4 + len(others) else given[0][:1]
                target.zero_()
            try:
                loss.backward()
                outcomes.append("")
            except RuntimeError as error:
                outcomes.append(str(error).partition(":")[0])
        assert outcomes[0] == outcomes[1], written
    assert all(changed) and changed


def test_no_label_counts_or_one_is_wrong(changed) -> None:
    """The mean over nothing is no number, and its gradients are zeros."""
    h, w, y = inputs()
    compiled = dynamo.compile(plain)
    loss, *gradients = results(compiled, h, w, torch.full_like(y, -100))
    assert changed == [True] and loss.isnan() and not any(g.any() for g in gradients)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(h.requires_grad_(), w, y + COLUMNS)


def test_logits_are_never_there(monkeypatch) -> None:
    """No value of forward has all rows and columns, and no kernel reads those of two chunks."""
    halves, peaks = [], []

    def cut(*given, **options):
        halves.append(partition_joint(*given, **options))
        return halves[-1]

    schedule_graph = from_aten.schedule_graph

    def schedule(graph, *given):
        made = schedule_graph(graph, *given)
        peaks.append(peak_of(graph, made))
        return made

    monkeypatch.setattr("dynamo.aot.api.partition_joint", cut)
    monkeypatch.setattr(from_aten, "schedule_graph", schedule)
    results(dynamo.compile(with_z_loss), *inputs())
    (half,) = halves
    for module in (half.forward, half.backwards[0].module):
        assert not any(is_tensor(n) and size_of(n) == (ROWS, COLUMNS) for n in module.graph.nodes)
    of_weight, of_chunk = 4 * COLUMNS * TERMS, 4 * COLUMNS * AT_ONCE
    assert peaks[0] < of_weight + 3 * of_chunk + 4 * ROWS * (TERMS + 40)


@pytest.mark.parametrize(("rows", "terms", "columns", "dtype", "sums", "expected"), [
    (8192, 2048, 128256, torch.bfloat16, True, 2048),
    (4096, 2048, 128256, torch.bfloat16, True, 2048),
    (2048, 512, 128256, torch.bfloat16, True, None),  # one chunk
    (8192, 8192, 128256, torch.bfloat16, True, None),  # the sum in float32 takes more
    (8192, 8192, 128256, torch.bfloat16, False, 2048),
])  # fmt: skip
def test_rows_on_a_gpu(rows, terms, columns, dtype, sums, expected, monkeypatch) -> None:
    monkeypatch.setattr(sizes, "EVEN", 128)
    assert sizes.choose_rows(rows, terms, columns, dtype, torch.device("cuda"), sums) == expected


@pytest.mark.parametrize(("dtype", "native", "expected"), [(torch.float16, False, False), (torch.bfloat16, True, False), (torch.float32, True, True)])
def test_gradients_of_half_precision(dtype, native, expected, changed, monkeypatch) -> None:
    """Those of float16 may be too small without the scale that comes from upstream."""
    monkeypatch.setattr(chunks, "is_native", lambda given: native and given.itemsize == 2)
    given, upstream = inputs(dtype), 1024.0
    for mine, theirs in zip(results(dynamo.compile(plain), *given, upstream), results(plain, *given, upstream), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-2 * float(theirs.abs().max()), rtol=0)
    assert any(changed) == expected


def test_may_be_left_out(changed) -> None:
    results(dynamo.compile(plain, options={"leave_out": "losses"}), *inputs())
    assert changed == []
