"""Convolutions with groups as templates, in Triton's interpreter, beside float64."""

from __future__ import annotations

from dataclasses import replace

import interpreted_templates
import pytest
import torch
import torch.nn.functional as F
from interpreted_templates import BLOCKS, check, noise, run
from interpreter_repairs import repair

import dynamo
from inductor.autotune import gpu_gemms
from inductor.codegen.triton import template
from inductor.codegen.triton.template_configs import can_describe
from inductor.fx_passes import layout_choice
from inductor.fx_passes.grouped_channels import pad_groups
from inductor.ir.gpus import H200
from inductor.scheduler.schedule import Blocks

FORMS = {  # groups, channels and results of one, window, height and width, what else
    "odd ends": (3, 24, 24, (3, 3), (6, 7), {"padding": 1}),
    "whole tiles": (2, 32, 64, (3, 3), (5, 6), {}),
    "more results": (2, 16, 40, (2, 3), (7, 6), {"padding": (1, 0), "dilation": (1, 2)}),
    "stride 2": (3, 48, 16, (3, 3), (8, 7), {"padding": 1, "stride": 2}),
    "1x1 stride 2": (4, 16, 8, (1, 1), (7, 5), {"stride": 2}),
    "few channels": (5, 4, 6, (3, 3), (5, 4), {"padding": 1}),
    "one channel": (6, 1, 2, (3, 3), (5, 4), {"padding": 1}),
}
BOXES = {  # as above
    "even": (2, 32, 32, (3, 3), (8, 8), {"padding": 1}),
    "odd ends": (3, 48, 24, (3, 3), (5, 7), {"padding": 1}),
    "stride 2": (2, 16, 40, (3, 3), (8, 6), {"padding": 1, "stride": 2}),
    "1x1 stride 2": (3, 16, 16, (1, 1), (7, 6), {"stride": 2}),
    "1x1 strides": (2, 32, 16, (1, 1), (6, 9), {"stride": (1, 3)}),
    "dilated": (2, 16, 16, (3, 2), (9, 8), {"dilation": (2, 3), "padding": (0, 2)}),
}


@pytest.fixture(autouse=True)
def repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    repair(monkeypatch)


def operands(form, dtype=torch.float16, count: int = 2):
    groups, channels, results, window, size, more = form
    last = torch.channels_last
    x = noise(count, groups * channels, *size, dtype=dtype).to(memory_format=last)
    w = noise(groups * results, channels, *window, dtype=dtype).to(memory_format=last)
    return x, w, {**more, "groups": groups}


@pytest.mark.parametrize("name", FORMS)
def test_values(name: str) -> None:
    """Bias, norm, residual, activation."""
    turn = list(FORMS).index(name)
    for dtype in ((torch.float16, torch.bfloat16, torch.float32) * 2)[turn % 3 :][: 1 if turn else 3]:
        x, w, more = operands(FORMS[name], dtype)
        s, t = noise(2, w.shape[0], 1, 1, dtype=dtype)
        b, r = noise(w.shape[0], dtype=dtype), torch.randn_like(F.conv2d(x, w, **more))

        def block(x, w, b, s, t, r):
            return F.relu(F.conv2d(x, w, b, **more) * s + t + r)  # noqa: B023

        got, (schedule,) = run(block, x, w, b, s, t, r)
        (found,) = schedule.templates()
        assert len(schedule.steps) == 1 and found.gemms()[0].groups == more["groups"]
        want = block(*(each.double() for each in (x, w, b, s, t, r)))
        tolerance = {torch.float16: 3e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}[dtype]
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * want.abs().max().item())
        assert got.stride() == r.stride()


@pytest.mark.parametrize("blocks", [
    replace(BLOCKS, splits=3), Blocks(32, 16, 32, 4, 2, group=1), Blocks(16, 64, 64, 4, 3),
    replace(BLOCKS, persistent=True),
], ids=str)
@pytest.mark.parametrize("name", ["odd ends", "whole tiles", "stride 2", "few channels"])
def test_blocks(monkeypatch: pytest.MonkeyPatch, name: str, blocks: Blocks) -> None:
    """Tiles that reach over the end of their group, steps that reach over its channels."""
    monkeypatch.setattr(template, "gpu_of", lambda template: H200.with_multiprocessors(2))
    x, w, more = operands(FORMS[name])
    r = torch.randn_like(F.conv2d(x, w, **more))
    check(lambda x, w, r: F.conv2d(x, w, **more) + r, x, w, r, templates=1, blocks=blocks)


@pytest.mark.parametrize("blocks", [
    Blocks(16, 64, 16, 4, 2, descriptors=True), Blocks(32, 16, 16, 4, 2, group=1, persistent=True, descriptors=True),
    Blocks(16, 32, 16, 4, 2, splits=3, descriptors=True),
], ids=str)
@pytest.mark.parametrize("name", BOXES)
def test_boxes(monkeypatch: pytest.MonkeyPatch, name: str, blocks: Blocks) -> None:
    monkeypatch.setattr(template, "gpu_of", lambda template: H200.with_multiprocessors(2))
    x, w, more = operands(BOXES[name], count=3)
    b, r = noise(w.shape[0]), torch.randn_like(F.conv2d(x, w, **more))
    function = lambda x, w, b, r: F.relu(F.conv2d(x, w, b, **more) + r)
    (found,) = check(function, x, w, b, r, templates=1, blocks=blocks).templates()
    assert can_describe(found)


def test_parts_of_images() -> None:
    """Channels, rows and columns are skipped; the weight lies as it was made."""
    x, w, more = operands((2, 20, 24, (3, 3), (9, 10), {"padding": 1}))
    check(lambda x, w: F.conv2d(x[1:, 4:36, ::2, 1:], w[:, :16], **more).relu(), x, w, templates=1)
    check(lambda x, w: F.conv2d(x, w, **more).relu(), x, w.contiguous(), templates=1)


def test_two_in_one_tile() -> None:
    x, w, more = operands(FORMS["odd ends"])
    v = torch.randn_like(w)
    gated = lambda x, w, v: F.conv2d(x, w, **more) * torch.sigmoid(F.conv2d(x, v, **more))
    (found,) = check(gated, x, w, v, templates=1).templates()
    assert len(found.gemms()) == 2
    other = lambda x, w, v: F.conv2d(x[:, :24], w[:24], padding=1) * F.conv2d(x, v, **more)[:, :24]
    got, (schedule,) = run(other, x, w, v)
    assert all(len(each.gemms()) == 1 for each in schedule.templates())
    torch.testing.assert_close(got, other(x, w, v), rtol=4e-3, atol=4e-2)


@pytest.mark.parametrize("blocks", [BLOCKS, Blocks(16, 64, 64, 4, 2), Blocks(16, 64, 16, 4, 2, descriptors=True)], ids=str)
def test_infinities_stay_in_their_group(blocks: Blocks) -> None:
    """Columns and channels behind the end of a group are those of the next one: they count as 0."""
    x, w, more = operands((3, 48, 24, (3, 3), (5, 4), {"padding": 1}))
    x[:, 48:96], w[24:48, 5] = torch.nan, torch.inf
    function = lambda x, w: F.conv2d(x, w, **more) + 1
    (got, _), want = run(function, x, w, blocks=blocks), function(x, w)
    assert got[:, 24:48].isnan().all() and got[:, :24].isfinite().all() and got[:, 48:].isfinite().all()
    torch.testing.assert_close(got, want, rtol=4e-3, atol=4e-2, equal_nan=True)


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide groups are templates without measuring, with something behind them and alone; others
    are the library's."""
    choose = lambda graph, made: gpu_gemms.choose_templates(graph, made, None)
    for form, count in (
        ((2, 48, 48, (3, 3), (6, 5), {"padding": 1}), 1), ((2, 64, 72, (3, 3), (6, 5), {"stride": 2}), 1),
        ((2, 32, 32, (3, 3), (6, 5), {}), 0), ((2, 44, 48, (3, 3), (5, 4), {}), 0), ((8, 4, 4, (3, 3), (6, 5), {}), 0),
    ):
        x, w, more = operands(form)
        for function in (
            lambda x, w: F.conv2d(x, w, **more), lambda x, w: F.conv2d(x, w, **more).relu() + 1,  # noqa: B023
            lambda x, w: F.conv2d(x, w, **more).softmax(1),  # noqa: B023
        ):
            dynamo.reset()
            got, (schedule,) = run(function, x, w, choose=choose)
            assert len(list(schedule.templates())) == count, form
            torch.testing.assert_close(got, function(x, w), rtol=4e-3, atol=4e-2)


@pytest.mark.parametrize(("form", "is_cut"), [
    ((2, 48, 56, (3, 3), (6, 5), {"padding": 1}), False), ((2, 20, 45, (3, 3), (6, 5), {"padding": 1}), True),
], ids=["whole words", "zeros"])
def test_behind_the_pass(monkeypatch: pytest.MonkeyPatch, form, is_cut: bool) -> None:
    """Whole words are read as they are; others with zeros, and what is behind a group is cut away."""
    monkeypatch.setattr(layout_choice, "on_gpu", lambda place: True)
    lower = interpreted_templates.lower_graph
    monkeypatch.setattr(interpreted_templates, "lower_graph", lambda module: lower(pad_groups(module)))
    x, w, more = operands(form)
    s, b = noise(w.shape[0], 1, 1), noise(w.shape[0])
    function = lambda x, w, b, s: F.relu(F.conv2d(x, w, b, **more) * s)
    choose = lambda graph, made: gpu_gemms.choose_templates(graph, made, None)
    got, (schedule,) = run(function, x, w, b, s, choose=choose)
    (found,) = schedule.templates()
    assert found.gemms()[0].groups == 2 and bool([*schedule.kernels()]) == is_cut
    want = function(*(each.double() for each in (x, w, b, s)))
    torch.testing.assert_close(got.double(), want, rtol=3e-3, atol=3e-3 * want.abs().max().item())
