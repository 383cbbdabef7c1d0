"""Builds the libraries of our own kernels with the package: no first compile waits for them.

`python -m inductor.driver.shipped_libraries FOLDER` (`setup.py` runs it) puts them there, named by
what they depend on: text, flags, compiler, processor. Elsewhere they are not found, and built at
their first use (`runtime/own_libraries.py`).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from dynamo.base.waiting import in_threads
from dynamo.store.content import Store
from dynamo.store.toolchain import find_toolchain
from inductor.autotune.library_convolutions import is_native
from inductor.kernels.cpu.attention.source import attention_unit
from inductor.kernels.cpu.convolution import CONVOLUTION_UNITS
from inductor.kernels.cpu.gemm import GEMM_UNIT
from inductor.kernels.cpu.half_gemm import HALF_UNIT
from inductor.runtime.build import build_library
from inductor.runtime.own_libraries import Units, with_fused_sums

LIBRARIES: tuple[Units, ...] = (
    (GEMM_UNIT,), (attention_unit(False),), (attention_unit(True),), CONVOLUTION_UNITS,
    *([(HALF_UNIT,)] if is_native(torch.bfloat16) else []),
)  # fmt: skip


def ship(folder: Path, libraries: Sequence[Units] = LIBRARIES) -> list[Path]:
    """Build the libraries into `folder`, where nothing else stays. Errors: BuildError;
    FileNotFoundError without a compiler."""
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place))
        toolchain = find_toolchain(store)
        if isinstance(toolchain, str):
            raise FileNotFoundError(toolchain)
        fused = with_fused_sums(toolchain)
        built = in_threads(
            lambda units: build_library(units, fused, store), libraries, len(libraries))
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.so"):
            old.unlink()
        shipped = [Path(shutil.copy(each.path, folder)) for each in built]
    for path in shipped:
        path.chmod(0o755)  # other users run it, too
    return shipped


if __name__ == "__main__":
    print(*ship(Path(sys.argv[1])), sep="\n")
