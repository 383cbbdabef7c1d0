"""Convolutions as Triton templates with what follows them; which of them are used is decided here."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.base.config import config
from inductor import metrics
from inductor.autotune import gpu_gemms
from inductor.codegen.triton.template_configs import candidate_blocks
from inductor.codegen.triton.template_likely import likely_blocks
from inductor.driver import for_gpu
from inductor.fx_passes import layout
from inductor.scheduler.schedule import TemplateKernel
from tests.gpu.support import DEVICE, DTYPES, check, check_model, data

CONVOLUTIONS = {  # images, channels, height and width, results, window, what else
    "3x3": (4, 64, (28, 28), 64, (3, 3), {"padding": 1}),
    "3x3 inside": (3, 128, (15, 17), 96, (3, 3), {}),
    "3x3 stride 2": (5, 96, (29, 31), 130, (3, 3), {"padding": 1, "stride": 2}),
    "3x3 dilated": (2, 40, (23, 19), 64, (3, 3), {"padding": 4, "dilation": 4}),
    "3x3 to few": (8, 128, (28, 28), 32, (3, 3), {"padding": 1}),
    "7x7 of few channels": (2, 3, (65, 63), 64, (7, 7), {"padding": 3, "stride": 2}),
    "1x1 stride 2": (4, 256, (28, 27), 200, (1, 1), {"stride": 2}),
    "1x1 padded": (2, 33, (9, 9), 48, (1, 1), {"padding": 2}),
    "1x7": (2, 72, (17, 17), 80, (1, 7), {"padding": (0, 3)}),
    "odd": (3, 37, (13, 11), 45, (5, 4), {"padding": (2, 1), "stride": (1, 3), "dilation": (2, 1)}),
}
GROUPED = {  # as above
    "48": (4, 192, (28, 28), 192, (3, 3), {"padding": 1, "groups": 4}),
    "48 stride 2": (3, 144, (15, 14), 144, (3, 3), {"padding": 1, "stride": 2, "groups": 3}),
    "56 to 40": (2, 112, (13, 17), 80, (3, 3), {"padding": 2, "dilation": 2, "groups": 2}),
    "64": (4, 512, (14, 14), 512, (3, 3), {"padding": 1, "groups": 8}),
    "64 stride 2": (4, 128, (28, 28), 128, (3, 3), {"padding": 1, "stride": 2, "groups": 2}),
    "128 to 256": (2, 256, (9, 7), 512, (3, 3), {"groups": 2}),
    "16": (3, 64, (20, 12), 64, (3, 3), {"padding": 1, "groups": 4}),
    "64, 1x1 stride 2": (4, 128, (14, 14), 256, (1, 1), {"stride": 2, "groups": 2}),
    "64, 5x1": (2, 192, (17, 9), 192, (5, 1), {"padding": (2, 0), "groups": 3}),
}
chosen: list[TemplateKernel] = []


@pytest.fixture(autouse=True)
def templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each convolution that can be a template is one, each time with other blocks and with its own channels."""
    chosen.clear()
    turns = itertools.count()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    def likely(template: TemplateKernel, layouts: Any = None) -> TemplateKernel | None:
        one = template.gemms()[0]
        if one.window is None or not template.epilogues():
            return None
        found, turn = candidate_blocks(template), next(turns)  # from both ends: the last are boxes
        at = turn // 2 if turn % 2 else -1 - turn // 2
        chosen.append(replace(template, blocks=found[at % len(found)]))
        return chosen[-1]

    monkeypatch.setattr(gpu_gemms, "likely_blocks", likely)
    # Odd channels are padded for the library, and what is cut from its result is no template's end.
    monkeypatch.setattr(layout, "is_padded", lambda node: False)


def image(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return data(*sizes, dtype=dtype).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_norm_residual_and_activation(name: str) -> None:
    count, channels, size, results, window, more = CONVOLUTIONS[name]
    made = F.conv2d(torch.empty(count, channels, *size), torch.empty(results, channels, *window), **more).shape

    def block(x: Any, w: Any, b: Any, s: Any, r: Any) -> Any:
        return F.relu(F.conv2d(x, w, b, **more) * s + r)

    for dtype in DTYPES:
        dynamo.reset()

        def make() -> tuple[Any, ...]:
            w = image(results, channels, *window, dtype=dtype)  # noqa: B023
            b, s = (data(*of, dtype=dtype) for of in ((results,), (results, 1, 1)))  # noqa: B023
            r = image(*made, dtype=dtype)  # noqa: B023
            return image(count, channels, *size, dtype=dtype), w, b, s, r  # noqa: B023

        with torch.no_grad():
            check(block, make, calls=2, slack=8.0)
    assert len(chosen) == 3 and all(each.gemms()[0].window is not None for each in chosen)


@pytest.mark.parametrize("name", GROUPED)
def test_groups(name: str) -> None:
    """Tiles of the columns of one group, which may reach over its end."""
    count, channels, size, results, window, more = GROUPED[name]
    weight = results, channels // more["groups"], *window
    made = F.conv2d(torch.empty(count, channels, *size), torch.empty(weight), **more).shape
    for dtype in DTYPES:
        dynamo.reset()

        def make() -> tuple[Any, ...]:
            b, s = (data(*of, dtype=dtype) for of in ((results,), (results, 1, 1)))  # noqa: B023
            x, w, r = (image(*of, dtype=dtype) for of in ((count, channels, *size), weight, made))  # noqa: B023
            return x, w, b, s, r

        with torch.no_grad():
            check(lambda x, w, b, s, r: F.relu(F.conv2d(x, w, b, **more) * s + r), make, calls=2, slack=8.0)
    assert len(chosen) == 3 and all(each.gemms()[0].groups == more["groups"] for each in chosen)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_blocks_of_groups(dtype: torch.dtype) -> None:
    """All that is tried first: channels of a group are whole boxes, and are not."""
    for channels, results in ((64, 96), (112, 40)):
        x, w = image(3, 2 * channels, 14, 14, dtype=dtype), image(2 * results, channels, 3, 3, dtype=dtype)
        chosen.clear()
        with torch.no_grad():
            for _ in range(12):
                dynamo.reset()
                check(
                    lambda x, w: F.silu(F.conv2d(x, w, padding=1, groups=2)),
                    lambda: (torch.randn_like(x), torch.randn_like(w)), calls=1, slack=8.0,  # noqa: B023
                )
        blocks = {each.blocks for each in chosen if each.blocks is not None}
        assert len(blocks) >= 8 and any(each.splits > 1 for each in blocks)
        assert any(each.descriptors and each.persistent for each in blocks)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_wide_groups_without_measuring(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, training: bool) -> None:
    """Forward as they are, gradients by the library with zeros behind the channels of a group."""
    monkeypatch.setattr(gpu_gemms, "likely_blocks", likely_blocks)
    before, found = for_gpu.choose_templates, list[int]()

    def spying(*args: Any) -> Any:
        schedule = before(*args)
        found.extend(each.gemms()[0].groups for each in schedule.templates() if each.gemms()[0].groups > 1)
        return schedule

    monkeypatch.setattr(for_gpu, "choose_templates", spying)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(192, 192, 3, padding=1, groups=4, bias=False), torch.nn.BatchNorm2d(192), torch.nn.SiLU(),
        torch.nn.Conv2d(192, 256, 3, padding=1, stride=2, groups=2), torch.nn.SiLU(),
        torch.nn.Conv2d(256, 512, 3, padding=1, groups=8), torch.nn.Tanh(),
    ).to(DEVICE, dtype).to(memory_format=torch.channels_last)
    check_model(model, lambda: {"input": image(4, 192, 28, 28, dtype=dtype)}, training=training, calls=2, slack=8.0)
    assert sorted(found) == [2, 4, 8]


@pytest.mark.parametrize("size", [(2, 64, 40, 33), (1, 128, 256, 256), (2, 64, 5, 7)], ids=str)
def test_groups_between(size: tuple[int, ...]) -> None:
    """Norms over groups of channels: a pass for sums, what joins them, a pass for the result."""
    def block(x: Any, w: Any, b: Any, v: Any) -> Any:
        y = F.conv2d(x, w, b, padding=1)
        return F.conv2d(F.silu(F.group_norm(y, 32, b, v, 1e-6)), w, v, padding=1) + y

    channels = size[1]
    for dtype in DTYPES[:2]:
        dynamo.reset()

        def make() -> tuple[Any, ...]:
            w = image(channels, channels, 3, 3, dtype=dtype) / 24  # noqa: B023
            return image(*size, dtype=dtype), w, *(data(channels, dtype=dtype) for _ in range(2))  # noqa: B023

        with torch.no_grad():
            check(block, make, calls=2, slack=8.0)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_blocks(dtype: torch.dtype) -> None:
    """All that is tried first, with what shares a sum."""
    x, w = image(2, 96, 14, 14, dtype=dtype), image(72, 96, 3, 3, dtype=dtype)
    with torch.no_grad():
        for _ in range(14):
            dynamo.reset()
            check(
                lambda x, w: F.silu(F.conv2d(x, w, padding=1)),
                lambda: (torch.randn_like(x), torch.randn_like(w)), calls=1, slack=8.0,
            )
    blocks = {each.blocks for each in chosen}
    assert len(blocks) >= 10 and any(each.splits > 1 for each in blocks if each is not None)
    assert any(each.descriptors and each.persistent for each in blocks if each is not None)


def test_what_is_measured_is_right_and_measured_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache of its own; the second compile measures nothing."""
    monkeypatch.setattr(gpu_gemms, "candidate_blocks", lambda each: candidate_blocks(each)[:2])
    monkeypatch.setattr(gpu_gemms, "neighbours", lambda best, each: ())
    for limit in ("ADVANTAGE", "CLOSE"):  # whatever the library takes, and whoever else is measuring
        monkeypatch.setattr(gpu_gemms, limit, 100.0)

    def block(x: Any, w: Any, s: Any) -> Any:
        return F.relu(F.conv2d(x, w, padding=1) * s)

    def make() -> tuple[Any, ...]:
        x, w = image(16, 64, 28, 28, dtype=torch.float16), image(64, 64, 3, 3, dtype=torch.float16)
        return x, w / 24, data(64, 1, 1, dtype=torch.float16)

    counts = []
    with config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        for _ in range(2):
            before = metrics.snapshot()["measured"]
            check(block, make, mode="max-autotune-no-cudagraphs", slack=8.0)
            counts.append(metrics.snapshot()["measured"] - before)
            dynamo.reset()
    assert counts[0] >= 3 and counts[1] == 0


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_what_is_likely_without_measuring(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Many pixels of few channels are a template's, few pixels of many are cuDNN's."""
    found: list[int] = []
    before = for_gpu.choose_templates

    def spying(*args: Any) -> Any:
        schedule = before(*args)
        found.append(len(list(schedule.templates())))
        return schedule

    monkeypatch.setattr(gpu_gemms, "likely_blocks", likely_blocks)
    monkeypatch.setattr(for_gpu, "choose_templates", spying)
    for count, channels, size, window, stride in ((64, 64, 56, 3, 1), (64, 3, 224, 7, 2), (2, 512, 7, 3, 1)):
        dynamo.reset()
        more = {"stride": stride, "padding": window // 2}

        def make() -> tuple[Any, ...]:
            x = image(count, channels, size, size, dtype=dtype)  # noqa: B023
            w = image(64, channels, window, window, dtype=dtype) / 8  # noqa: B023
            return x, w, data(64, 1, 1, dtype=dtype)

        with torch.no_grad():
            check(lambda x, w, s: F.relu(F.conv2d(x, w, **more) * s), make, calls=1, slack=8.0)  # noqa: B023
    assert found == [1, 1, 0]
