"""Choices for a GPU: on an H200 those that were measured there, elsewhere by its properties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gpu_choices import choice_lines, convolved, kernels_of, linear

from inductor.autotune.measure import uncached_bytes
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.codegen.triton.template import print_template
from inductor.codegen.triton.template_configs import candidate_blocks, neighbours, shared_of
from inductor.codegen.triton.template_likely import estimates, likely_blocks
from inductor.config import config
from inductor.fx_passes.losses import sizes
from inductor.ir.gpus import DEVICES, H200, OF_KINDS, described
from inductor.kernels.attention_spec import splits_of
from inductor.runtime.gpu_properties import properties_from, properties_of
from inductor.scheduler.schedule import Blocks

GIB = 1 << 30


@pytest.mark.parametrize("gpu", ["", "H200", "sm_90"])
def test_choices_on_an_h200_are_those_measured(gpu: str) -> None:
    """They were written down before choices went by the properties of a device."""
    expected = Path(__file__).with_name("choices_on_h200.txt").read_text().splitlines()
    with config.patch(gpu=gpu):
        assert list(choice_lines()) == expected


@pytest.mark.parametrize("gpu", [each.name for each in DEVICES])
def test_candidates_fit_their_device(gpu: str) -> None:
    with config.patch(gpu=gpu):
        found = properties_of()
        for m, n, k, parts in ((4096, 3072, 768, 1), (4096, 3072, 768, 2), (8, 2048, 5632, 3)):
            template, _ = linear(m, n, k, parts)
            tried = candidate_blocks(template)
            assert tried
            for blocks in (*tried, *(near for each in tried for near in neighbours(each, template))):
                assert shared_of(blocks, template) <= found.shared
                assert blocks.warps * found.warp <= found.threads
                assert found.has_descriptors or not blocks.descriptors


@pytest.mark.parametrize("gpu", [each.name for each in DEVICES])
def test_wide_groups_are_templates(gpu: str) -> None:
    """Everywhere, with the columns of one group; sums are shared where tiles are few."""
    with config.patch(gpu=gpu):
        for sizes, groups in (
            ((16, 96, 56, 96, 3), 2), ((16, 1008, 7, 1008, 3), 21), ((16, 512, 14, 512, 3), 2), ((1, 512, 7, 1024, 3), 2),
            ((16, 224, 28, 224, 3), 2), ((16, 64, 56, 128, 3), 2), ((64, 64, 56, 64, 3), 2), ((64, 64, 56, 64, 3), 16),
        ):
            template, layouts = convolved(*sizes, groups=groups)
            narrow = max(sizes[1], sizes[3]) // groups <= 32
            alone = replace(template, parts=(replace(template.parts[0], epilogue=None, stored=("y",)),))
            for each in (template, alone):
                likely = likely_blocks(each, layouts)
                assert (likely is None) == narrow
                if likely is None or likely.blocks is None:
                    continue
                blocks = likely.blocks
                assert blocks.columns <= max(32, 2 * sizes[3] // groups) and (blocks.splits > 1 or sizes[0] > 1)
                tiles = groups * -(-sizes[3] // groups // blocks.columns)
                rows = -(-sizes[0] * sizes[2] ** 2 // blocks.rows)
                assert print_template(likely, layouts).grid == (rows * tiles, 1, blocks.splits)


def test_choices_go_by_multiprocessors() -> None:
    """Of a persistent grid, of sums that are split, of programs for the keys of a head."""
    template, layouts = linear(4096, 3072, 768, 1)
    blocks = Blocks(128, 256, 64, 8, 4, persistent=True)
    for name, count in (("A100", 108), ("B200", 148)):
        with config.patch(gpu=name):
            assert print_template(replace(template, blocks=blocks), layouts).grid[0] == count
            (kernel,), of_kernel = kernels_of(lambda x: x.sum(1), (16, 1 << 18), torch.float16)
            columns = (1 << 18) // -(-16 * count // 16)
            assert print_kernel(kernel, of_kernel).sources[0].splits == -(-(1 << 18) // (-(-columns // 1024) * 1024))
            assert splits_of(properties_of(), 1, 8, 1, 8, 1 << 20) == -(-2 * count // 8)


def test_times_go_by_the_makers_figures() -> None:
    """What waits for memory takes as much longer as the memory is slower."""
    template, layouts = linear(1 << 20, 96, 16, 1)
    template = replace(template, blocks=Blocks(128, 32, 16, 2, 2))
    took = {}
    for name in ("H200", "H100", "A100"):
        with config.patch(gpu=name):
            took[name] = estimates(template, layouts)[1]
    assert 1.3 < took["H100"] / took["H200"] < 4800 / 3350 < took["A100"] / took["H200"]


def test_rows_of_a_loss_go_by_memory() -> None:
    """A device with a sixth of the memory computes fewer logits at a time."""
    rows = {}
    for name in ("H200", "A10"):
        with config.patch(gpu=name):
            device = torch.device("cuda", 0)
            rows[name] = sizes.choose_rows(1 << 16, 1024, 32000, torch.bfloat16, device, False)
    assert rows["A10"] < rows["H200"] and rows["A10"] % 128 == 0


def facts(name: str, **more: object) -> SimpleNamespace:
    """What torch says of an H200, but for some."""
    known = {
        "name": name, "major": 9, "minor": 0, "multi_processor_count": 132, "gcnArchName": "",
        "total_memory": 150_754_820_096, "L2_cache_size": 62914560, "memory_clock_rate": 3201000,
        "memory_bus_width": 6144, "shared_memory_per_block_optin": 232448, "warp_size": 32,
        "regs_per_multiprocessor": 65536,
    }
    return SimpleNamespace(**known | more)


def test_properties_are_asked() -> None:
    never = lambda: pytest.fail("measured")  # noqa: E731
    assert properties_from(facts("NVIDIA H200"), never) == H200
    slower = properties_from(facts("NVIDIA H100 PCIe", multi_processor_count=114, memory_clock_rate=1593000, memory_bus_width=5120, total_memory=80 * GIB), never)
    assert (slower.multiprocessors, slower.bandwidth) == (114, 2039.04e9)
    assert slower.gemms == pytest.approx(989.5e12 * 114 / 132)
    unknown = facts("Some Card", major=8, minor=6, multi_processor_count=36, memory_clock_rate=7000000, memory_bus_width=128,
                    shared_memory_per_block_optin=101376, L2_cache_size=3 << 20, total_memory=8 * GIB)
    made = properties_from(unknown, lambda: 40e12)
    assert (made.kind, made.shared, made.cache, made.bandwidth, made.gemms) == ("sm_86", 99 << 10, 3 << 20, 224e9, 40e12)
    assert properties_from(unknown, lambda: 0.0).gemms == described("sm_86").gemms * 36 / 72
    amd = properties_from(facts("AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304, warp_size=64,
                                memory_clock_rate=0, shared_memory_per_block_optin=65536, total_memory=192 * 10**9, regs_per_multiprocessor=0), never)
    assert amd == described("gfx942")


def test_what_is_described() -> None:
    assert set(OF_KINDS) >= {"sm_80", "sm_89", "sm_90", "sm_100", "gfx942"}
    ada = described("sm_87")
    assert (ada.kind, ada.shared, ada.multiprocessors) == ("sm_87", 163 << 10, described("sm_86").multiprocessors)
    assert described("sm_75").shared == 64 << 10
    with pytest.raises(ValueError, match="one of sm_"):
        described("H2000")


def test_caches_go_by_the_device() -> None:
    """What is read again after so many bytes is no longer there; a cold measurement leaves none."""
    kernels, layouts = kernels_of(lambda x: x.softmax(-1), (100, 50257), torch.float32)  # 20 MB
    gpu = torch.device("cuda", 0)
    for name, is_evicted, cold in (("H200", False, 128), ("A10", True, 128), ("MI300X", False, 512)):
        with config.patch(gpu=name):
            text = "".join(source.text for kernel in kernels for source in print_kernel(kernel, layouts).sources)
            assert ("evict_first" in text) == is_evicted
            assert uncached_bytes(gpu) == cold << 20
    assert [described(kind).near_cache >> 10 for kind in ("sm_80", "sm_89", "sm_90", "gfx942")] == [192, 128, 256, 32]
