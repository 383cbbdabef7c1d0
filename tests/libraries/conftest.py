"""Makes torchvision importable where its extension was built for another torch: transformers and
timm import it where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

OPERATORS = """nms qnms roi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d
_interpolate_bilinear2d_aa _interpolate_bicubic2d_aa""".split()
KEPT = []  # what a library defines lives as long as it does


def prepare() -> None:
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # its operators do not exist
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        KEPT.append(library := torch.library.Library("torchvision", "DEF"))
        for name in OPERATORS:
            library.define(f"{name}(Tensor x) -> Tensor")
            library.define(f"_{name.removeprefix('_')}_backward(Tensor x) -> Tensor")
        importlib.import_module("torchvision")


prepare()
