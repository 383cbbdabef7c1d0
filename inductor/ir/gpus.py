"""What decides how kernels are cut for a GPU: `GpuProperties`, and those of known devices.

A device that is there is asked (`inductor/runtime/gpu_properties.py`); where kernels are made for
one that is not, its row below stands for it. Constants of choices were found by measuring on an
H200: what depends on the device is written for `MEASURED` and scaled by these properties, so that
the choices for an H200 are those that were measured.

    >>> described("sm_80").shared >> 10, described("gfx942").warp
    (163, 64)
    >>> described("sm_80").scaled(132)
    108
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Blocks = TypeVar("Blocks")

@dataclass(frozen=True, slots=True)
class GpuProperties:
    """kind: the architecture as compilers call it. shared: bytes of shared memory that one program
    may have. registers: of 32 bits, of a multiprocessor; threads: of a program at most; warp: of
    one warp. cache: bytes of the last cache before memory. memory: bytes. bandwidth: bytes a
    second. gemms, scalars: operations a second, dense GEMMs in half precision and arithmetic
    in float32; both as the maker says them."""

    name: str
    kind: str
    multiprocessors: int
    shared: int
    cache: int
    memory: int
    bandwidth: float
    gemms: float
    scalars: float
    registers: int = 1 << 16
    threads: int = 1024
    warp: int = 32

    @property
    def capability(self) -> int:
        """90 for compute capability 9.0; 0 for a GPU that is not NVIDIA's."""
        return int(self.kind[3:]) if self.kind.startswith("sm_") else 0

    @property
    def near_cache(self) -> int:
        """Bytes of the cache of a multiprocessor, which shares its memory with `shared`."""
        kib = NEAR_CACHES.get(self.capability, LEAST_NEAR_CACHE)
        return kib << 10

    @property
    def has_descriptors(self) -> bool:
        """Whether a copy engine (TMA) moves tiles; elsewhere a descriptor is loads and masks."""
        return self.capability >= FIRST_WITH_DESCRIPTORS

    @property
    def most_warps(self) -> int:
        return self.threads // self.warp

    def scaled(self, count: int) -> int:
        """A number of programs or elements that fills `MEASURED`, for the multiprocessors here."""
        return count * self.multiprocessors // MEASURED.multiprocessors

    def scaled_by_bandwidth(self, count: int) -> int:
        """Bytes or elements that `MEASURED` moves in some time, for the memory here."""
        return int(count * (self.bandwidth / MEASURED.bandwidth))

    def scaled_by_cache(self, count: int) -> int:
        """Bytes that are still in the last cache of `MEASURED` later, for that of this device."""
        return count * self.cache // MEASURED.cache

    def scaled_by_memory(self, count: int) -> int:
        """A part of the memory of `MEASURED`, for that of this device."""
        return count * self.memory // MEASURED.memory

    def scaled_by_intensity(self, count: int) -> int:
        """Rows of a GEMM for each of which so much is computed that its operands need not be
        waited for."""
        ratio = self.gemms / self.bandwidth / (MEASURED.gemms / MEASURED.bandwidth)
        return max(1, round(count * ratio))

    def with_multiprocessors(self, count: int) -> GpuProperties:
        """The same device with more or fewer of them, as a smaller model or a slice of it."""
        part = count / self.multiprocessors
        return replace(
            self, multiprocessors=count, gemms=self.gemms * part,
            scalars=self.scalars * part)


FIRST_WITH_DESCRIPTORS = 90  # compute capability: Hopper's, the first with TMA
# KiB of shared memory of one program by compute capability: "CUDA C++ Programming Guide", table
# "Technical Specifications per Compute Capability"; the same table has 64 K registers for all.
MOST_SHARED = {
    70: 96, 72: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227,
    110: 227, 120: 99, 121: 99,
}  # fmt: skip
LEAST_SHARED = 64  # KiB, of others
# KiB of the cache of a multiprocessor, that memory included: "CUDA C++ Programming Guide", the
# sections on compute capabilities; "AMD CDNA 3 Architecture" for GPUs that are not NVIDIA's (0).
NEAR_CACHES = {
    0: 32, 70: 128, 72: 128, 75: 96, 80: 192, 86: 128, 87: 192, 89: 128, 90: 256, 100: 256,
    103: 256, 110: 256, 120: 128, 121: 128,
}  # fmt: skip
LEAST_NEAR_CACHE = 128  # KiB, of others


def most_shared(capability: int) -> int:
    """Bytes of shared memory that a program may have."""
    return MOST_SHARED.get(capability, LEAST_SHARED) << 10


def _nvidia(
    name: str, capability: int, multiprocessors: int, cache: int, memory: float,
    bandwidth: float, gemms: float, scalars: float,
) -> GpuProperties:
    """cache: MiB; memory: GB; bandwidth: GB/s; gemms, scalars: TFLOP/s."""
    return GpuProperties(
        name, f"sm_{capability}", multiprocessors, most_shared(capability), cache << 20,
        int(memory * 1e9), bandwidth * 1e9, gemms * 1e12, scalars * 1e12)


# "NVIDIA H200 Tensor Core GPU Datasheet": 141 GB at 4.8 TB/s, 1979 TFLOP/s with sparsity (half of
# that without), 67 in FP32; "NVIDIA H100 Tensor Core GPU Architecture": 132 SMs, 50 MB of L2.
H200 = _nvidia("H200", 90, 132, 50, 141, 4800, 989.5, 67)
# The device on which the constants of choices were found.
MEASURED = H200
DEVICES = (
    # "NVIDIA A100 Tensor Core GPU Architecture" and its datasheet (80 GB, SXM).
    _nvidia("A100", 80, 108, 40, 80, 2039, 312, 19.5),
    # "NVIDIA A10 datasheet"; "NVIDIA Ampere GA102 GPU Architecture" for the cache.
    _nvidia("A10", 86, 72, 6, 24, 600, 125, 31.2),
    # "NVIDIA L40S datasheet"; "NVIDIA Ada GPU Architecture" for SMs and the cache.
    _nvidia("L40S", 89, 142, 96, 48, 864, 362, 91.6),
    # "NVIDIA Ada GPU Architecture", appendix A: FP16 with sums in FP32.
    _nvidia("RTX 4090", 89, 128, 72, 24, 1008, 165.2, 82.6),
    # "NVIDIA H100 Tensor Core GPU Datasheet" (SXM).
    _nvidia("H100", 90, 132, 50, 80, 3350, 989.5, 67),
    H200,
    # "NVIDIA DGX B200 Datasheet", for one of eight: 180 GB, 8 TB/s, 4.5 PFLOP/s with sparsity;
    # "NVIDIA Blackwell Architecture Technical Brief"; 148 SMs and 126 MB of L2 as the driver says.
    _nvidia("B200", 100, 148, 126, 180, 8000, 2250, 75),
    # "NVIDIA RTX Blackwell GPU Architecture", appendix A (RTX 5090).
    _nvidia("RTX 5090", 120, 170, 96, 32, 1792, 209.5, 104.8),
    # "AMD Instinct MI300X Data Sheet": 304 compute units, 5.3 TB/s, 1307.4 and 163.4 TFLOP/s, 256
    # MB of Infinity Cache; "AMD CDNA 3 Architecture": 64 KB of LDS and 512 KB of vector registers
    # of a compute unit, wavefronts of 64.
    GpuProperties(
        "MI300X", "gfx942", 304, 64 << 10, 256 << 20, int(192e9), 5300e9, 1307.4e12, 163.4e12,
        registers=1 << 17, warp=64),
)  # fmt: skip
# What stands for an architecture: the model that most data centers have.
OF_KINDS = {"sm_90": H200} | {each.kind: each for each in reversed(DEVICES) if each.kind != "sm_90"}


def described(name: str) -> GpuProperties:
    """The properties of a device, or of what stands for an architecture, that need not be here.

    Of an NVIDIA GPU without a row shared memory is known; the rest is that of the row with the
    greatest capability below. Errors: ValueError.
    """
    if name in OF_KINDS:
        return OF_KINDS[name]
    for each in DEVICES:
        if each.name == name:
            return each
    number = name.removeprefix("sm_")
    if number == name or not number.isdigit():
        known = ", ".join([*OF_KINDS, *(each.name for each in DEVICES)])
        raise ValueError(f"gpu: {name!r} is not known; sm_NN, or one of {known}")
    near = [each for each in OF_KINDS.values() if each.capability <= int(number)]
    nearest = max(near, key=lambda each: each.capability)
    if not nearest.capability:
        nearest = OF_KINDS["sm_80"]
    return replace(nearest, name=name, kind=name, shared=most_shared(int(number)))


def known_device(name: str, kind: str) -> GpuProperties | None:
    """The row of a device by the name that its driver gives it; None without a row."""
    words = f" {name.replace('-', ' ')} "
    found = [each for each in DEVICES if each.kind == kind and f" {each.name} " in words]
    return found[0] if found else None


def shrunk(blocks: Blocks, is_held: Callable[[Blocks], bool], stages: int, least: int) -> Blocks:
    """With fewer stages, then shallower steps, then narrower tiles, until a device holds them in
    shared memory. stages, least: the fewest there may be, and the least of a side."""
    while not is_held(blocks):
        sides: Any = blocks
        if sides.stages > stages:
            blocks = replace(sides, stages=sides.stages - 1)
        elif getattr(sides, "depth", least) > least:
            blocks = replace(sides, depth=sides.depth // 2)
        elif max(sides.rows, sides.columns) > least:
            side = "columns" if sides.columns >= sides.rows else "rows"
            blocks = replace(sides, **{side: getattr(sides, side) // 2})
        else:
            break
    return blocks
