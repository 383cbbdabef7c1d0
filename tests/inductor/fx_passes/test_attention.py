"""Attention in captured graphs becomes one operator where a kernel of our own is for it."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import dynamo
import inductor.fx_passes.attention.written_attention
import inductor.operators.attention_ops
from inductor.driver.compile_fx import aot_eager
from inductor.fx_passes.attention.calls import replace_attention

LEAST = torch.finfo(torch.float32).min


def plain(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()


def causal(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous() + 1


def biased(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=1.0).transpose(1, 2).contiguous()


def masked(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0).transpose(1, 2).contiguous()


def grouped(q, k, v, m):
    k, v = k[:, :2], v[:, :2]
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).contiguous()


def gemma(q, k, v, m):
    x = torch.matmul(q, k.transpose(2, 3)) * 0.25
    x = torch.tanh(x / 5.0) * 5.0
    x = F.softmax(x + m, dim=-1, dtype=torch.float32).to(torch.float64)
    return torch.matmul(F.dropout(x, p=0.0, training=False), v).transpose(1, 2).contiguous()


def neo(q, k, v, m):
    q, k = q.to(torch.float32), k.to(torch.float32)
    x = torch.matmul(q, k.transpose(-1, -2))
    x = torch.where(m > 0, x, LEAST) + m.float()
    x = F.softmax(x, dim=-1).to(torch.float64)
    return torch.matmul(x, v).permute(0, 2, 1, 3).contiguous()


def old(q, k, v, m):
    x = q @ k.transpose(-1, -2) / math.sqrt(8)
    return ((x + m).softmax(-1) @ v).transpose(1, 2).contiguous()


def filled(q, k, v, m):
    x = torch.matmul(q, k.transpose(-1, -2)).masked_fill(m > 1, -math.inf)
    return torch.matmul(torch.softmax(x, -1), v).transpose(1, 2).contiguous()


def reused(q, k, v, m):
    x = F.softmax(torch.matmul(q, k.transpose(-1, -2)), -1)
    return torch.matmul(x, v).transpose(1, 2), x


def viewed(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m).view(-1)


def shown(q, k, v, m):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m).transpose(1, 2)


def repeat_by_views(x, n):
    batch, heads, length, size = x.shape
    return x[:, :, None, :, :].expand(batch, heads, n, length, size).reshape(batch, heads * n, length, size)


def repeated(q, k, v, m):
    k, v = repeat_by_views(k[:, :2], 2), v[:, :2].repeat_interleave(2, dim=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0).transpose(1, 2).flatten(2)


def repeated_unevenly(q, k, v, m):
    k, v = repeat_by_views(k[:, :2], 2), repeat_by_views(v[:, :1], 4)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0).transpose(1, 2).flatten(2)


def repeated_and_written(q, k, v, m):
    few = k[:, :2].clone()
    k, v = repeat_by_views(few, 2), repeat_by_views(v[:, :2], 2)
    few.mul_(2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0).transpose(1, 2).flatten(2) + few.sum()


def tiled(q, k, v, m):
    k, v = k[:, :2].repeat(1, 2, 1, 1), v[:, :2].repeat(1, 2, 1, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0).transpose(1, 2).flatten(2)


SERVED = [plain, causal, biased, masked, grouped, gemma, neo, old, filled]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator computes float64 on the CPU, too."""

    def has_kernel(q, k, v, added=None):
        return True

    for module in (inductor.operators.attention_ops, inductor.fx_passes.attention.written_attention):
        monkeypatch.setattr(module, "has_kernel", has_kernel)
    monkeypatch.setattr(inductor.operators.attention_ops, "is_faster", has_kernel)
    monkeypatch.setitem(inductor.fx_passes.attention.written_attention.LARGE, torch.float64, -1e30)


def tensors(grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(2, 5, 4, 8, dtype=torch.float64).transpose(1, 2) for _ in range(3)]
    made.append(torch.randn(2, 1, 5, 5, dtype=torch.float64))
    return [tensor.requires_grad_(grad) for tensor in made]


def operators(seen: list[str]):
    """Notes what runs."""

    class Notes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **kwargs or {})

    return Notes()


@pytest.mark.parametrize("program", SERVED, ids=lambda f: f.__name__)
def test_inference(program) -> None:
    gm = fx.symbolic_trace(program)
    replace_attention(gm)
    seen: list[str] = []
    with torch.no_grad():
        compiled, given = aot_eager(gm, tensors()), tensors()
        with operators(seen):
            result = compiled(*given)
    assert seen.count("dynamo_jit::attention") == 1
    with torch.no_grad():
        expected = program(*tensors())
    result = result[0] if isinstance(result, (tuple, list)) else result
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("program", [plain, causal, biased, grouped, gemma, old, filled], ids=lambda f: f.__name__)
def test_training(program) -> None:
    gm = fx.symbolic_trace(program)
    replace_attention(gm)
    given, own = tensors(True), tensors(True)
    result = aot_eager(gm, given)(*given)
    result = result[0] if isinstance(result, (tuple, list)) else result
    expected = program(*own)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    seen: list[str] = []
    with operators(seen):
        result.square().sum().backward()
    assert ("dynamo_jit::attention_backward" in seen) == (program is not filled)
    expected.square().sum().backward()
    for one, other in zip(given, own, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)



@pytest.mark.parametrize("program", [reused, viewed, shown], ids=lambda f: f.__name__)
def test_left_alone(program) -> None:
    gm = fx.symbolic_trace(program)
    code = gm.code
    replace_attention(gm)
    assert gm.code == code


def test_rows_without_keys_are_nan_as_written() -> None:
    given = tensors()
    given[3].fill_(2)
    gm = fx.symbolic_trace(filled)
    replace_attention(gm)
    with torch.no_grad():
        result = aot_eager(gm, given)(*given)
    assert torch.isnan(result[0] if isinstance(result, (tuple, list)) else result).all()


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    "program, heads", [(repeated, 2), (repeated_unevenly, 4), (repeated_and_written, 4), (tiled, 4)],
    ids=lambda value: getattr(value, "__name__", str(value)))
def test_heads_that_the_program_repeats(
    program, heads: int, grad: bool, faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our kernel reads them once; torch's gets them as the program has written them."""
    monkeypatch.setattr(inductor.operators.attention_ops, "is_faster", lambda *_: faster)
    keys: list[int] = []

    def backend(gm, example_inputs):
        replace_attention(gm)
        for node in gm.graph.nodes:
            if node.target is inductor.operators.attention_ops.attention:
                keys.append(node.args[1].meta["example_value"].shape[1])
        return aot_eager(gm, example_inputs)

    given, own = tensors(grad), tensors(grad)
    result, expected = dynamo.compile(program, backend=backend)(*given), program(*own)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    assert keys == [heads]
    if grad:
        result.square().sum().backward()
        expected.square().sum().backward()
        for one, other in zip(given[:3], own[:3], strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-6)


AXES = {  # of queries: extents, and the order in which they lie in memory
    "rows": ((5, 7, 4), (0, 1, 2)),
    "blocks behind heads": ((2, 3, 5, 7, 4), (0, 2, 3, 1, 4)),
    "blocks before heads": ((2, 5, 3, 7, 4), (0, 1, 3, 2, 4)),
    "heads in front": ((3, 2, 5, 7, 4), (1, 2, 3, 0, 4)),
    "in no order": ((2, 3, 5, 2, 7, 4), (3, 1, 0, 2, 5, 4)),
}


@pytest.mark.parametrize("mask", ["none", "causal", "given", "of heads"])
@pytest.mark.parametrize("form", AXES)
def test_other_than_four_axes(form: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's kernels are given four of them, if no head has a mask of its own."""
    monkeypatch.setattr(inductor.operators.attention_ops, "_is_half_on_gpu", lambda x: True)
    monkeypatch.setattr(inductor.operators.attention_ops, "has_kernel", lambda *_: False)
    seen: list[torch.Size] = []

    def noting(query, *rest, **more):
        seen.append(query.shape)
        return F.scaled_dot_product_attention(query, *rest, **more)

    monkeypatch.setattr(inductor.operators.attention_ops, "sdpa", noting)
    size, order = AXES[form]
    back = sorted(range(len(order)), key=order.__getitem__)

    def made() -> torch.Tensor:
        laid = torch.randn([size[axis] for axis in order], dtype=torch.float64)
        return laid.permute(back).requires_grad_()

    given = [made() for _ in range(3)]
    given[1] = torch.randn(*size[:-2], 9, size[-1], dtype=torch.float64).requires_grad_()
    given[2] = torch.randn(*size[:-2], 9, 6, dtype=torch.float64).requires_grad_()
    masks = {"given": torch.randn(7, 9, dtype=torch.float64), "of heads": torch.rand(*size[:-2], 7, 9) > 0.2}
    facts = {"is_causal": mask == "causal", "scale": 0.3}
    results = [
        call(*given, masks.get(mask), **facts)
        for call in (inductor.operators.attention_ops.attention, F.scaled_dot_product_attention)
    ]
    torch.testing.assert_close(*results)
    assert len(seen[0]) == (len(size) if mask == "of heads" else 4)
    weight = torch.randn_like(results[0])
    for one, other in zip(*(torch.autograd.grad(y, given, weight) for y in results), strict=True):
        torch.testing.assert_close(one, other)


def test_axes_that_are_one_in_memory_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor.operators.attention_ops, "_is_half_on_gpu", lambda x: True)
    monkeypatch.setattr(inductor.operators.attention_ops, "has_kernel", lambda *_: False)
    places: list[int] = []

    def noting(query, *rest, **more):
        places.append(query.data_ptr())
        return F.scaled_dot_product_attention(query, *rest, **more)

    monkeypatch.setattr(inductor.operators.attention_ops, "sdpa", noting)
    joined = torch.randn(2, 5, 7, 3, 3, 4)  # images, blocks, pixels, query key and value, heads, head
    query, key, value = joined.permute(3, 0, 4, 1, 2, 5)
    inductor.operators.attention_ops.attention(query, key, value)
    assert places == [query.data_ptr()]


@pytest.mark.parametrize("added", [
    torch.randn(3, 7, 13), torch.randn(2, 3, 7, 13), torch.randn(7, 13, 3).permute(2, 0, 1),
    torch.rand(2, 1, 7, 13) > 0.2, torch.randn(1, 1, 7, 13).expand(2, 3, 7, 13), torch.randn(2, 1, 1, 13),
    torch.randn(3, 7, 16)[..., :13], torch.randn(7, 1).expand(7, 13)], ids=lambda x: f"{tuple(x.shape)} {x.stride()}")
def test_rows_of_masks_begin_at_whole_words(added: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repeated is not repeated in memory, and what lies so is as it is."""
    given: list[torch.Tensor] = []
    ours = torch.ops.dynamo_jit.attention

    def noting(q, k, v, bias, mask, *rest):
        given.append(mask if bias is None else bias)
        return ours(q, k, v, bias, mask, *rest)

    monkeypatch.setattr(torch.ops.dynamo_jit, "attention", noting)
    q, k, v = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 13, 8), torch.randn(2, 3, 13, 8)
    found = inductor.operators.attention_ops.attention(q, k, v, added)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, added), rtol=1e-5, atol=1e-5)
    used = given[0]
    row, step = used.stride()[2:]
    assert used.shape[2] == 1 or 0 in (row, step) or step == 1 and row % 16 == 0
    assert used.untyped_storage().nbytes() <= math.prod(n if s else 1 for n, s in zip(
        added.shape, added.stride(), strict=True)) * 16 / 13 * added.element_size() + 1e-9


def test_gradients_lie_where_autograd_keeps_them() -> None:
    """It would copy those of tensors of its own that lie in another order; others lie as GEMMs want them."""
    q, k = torch.randn(2, 3, 8, 4, requires_grad=True), torch.randn(2, 8, 3, 4).transpose(1, 2).requires_grad_()
    v = torch.randn(2, 3, 8, 4, requires_grad=True)

    def program(q, k, v):
        return torch.ops.dynamo_jit.attention(q, k, v * 2, None, None, False, 0.5, 0, 0.0, False, False)[0]

    for call in (program, dynamo.compile(program)):
        given: dict[str, torch.Tensor] = {}
        handles = [x.register_hook(functools.partial(given.__setitem__, name)) for name, x in (("q", q), ("k", k))]
        call(q, k, v).square().sum().backward()
        assert given["q"].stride() == q.stride() and given["k"].stride() == k.stride()
        for handle in handles:
            handle.remove()
        q.grad = k.grad = v.grad = None


@pytest.mark.parametrize(("queries", "repeats", "head", "grad", "ours"), [
    (1, 4, 128, False, True), (1, 1, 128, False, False), (64, 4, 128, False, False), (1, 4, 512, False, False),
    (1, 4, 128, True, False),
])  # fmt: skip
def test_few_queries_wait_for_no_copies(queries, repeats, head, grad, ours, monkeypatch) -> None:
    """Torch's kernel would be the faster one, but for the copies of keys and values before it."""
    module = inductor.operators.attention_ops
    monkeypatch.setattr(module, "is_faster", lambda *_: False)
    monkeypatch.setattr(module, "is_faster_in_parts", lambda *_: False)
    q = torch.randn(1, 4 * repeats, queries, head, requires_grad=grad)
    k, v = torch.randn(2, 1, 4, 16, head)
    seen = operators(names := [])
    with seen:
        mask = torch.ones(1, 1, 1, 16, dtype=torch.bool)
        module.attention(q, k, v, mask.expand(1, 1, queries, 16), repeats=repeats)
        module.attention_with_parts(((mask,), False, 0), q, k, v, mask.expand(1, 1, queries, 16), repeats=repeats)
    assert sum(name.startswith("dynamo_jit") for name in names) == (2 if ours else 0), names
