"""Translation units out of printed kernels.

In: the kernels of one graph and text that stands after them (the wrapper). Out: one text, or
several to be compiled side by side where there are many kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor.codegen.cpp.kernel import KernelSource
from inductor.codegen.cpp.prelude import prelude_for


def print_unit(kernels: Sequence[KernelSource], tail: str = "") -> str:
    """One translation unit with everything."""
    texts = [kernel.text for kernel in kernels]
    return "\n".join([prelude_for([*texts, tail]), *texts, tail])


def print_units(
    kernels: Sequence[KernelSource], tail: str = "", cores: int = 1, limit: int = 8
) -> list[str]:
    """A unit for each `limit` kernels, but no more units than cores; `tail` is in the first."""
    count = min(cores, -(-len(kernels) // limit))
    if count < 2:
        return [print_unit(kernels, tail)]
    shares = _share_out(kernels, count)
    declared = "\n".join(_declaration(kernel) for kernel in kernels)
    units = []
    for number, share in enumerate(shares):
        texts = [_export(kernel) for kernel in share]
        head = declared if number == 0 else ""
        end = tail if number == 0 else ""
        units.append("\n".join([prelude_for([*texts, end]), head, *texts, end]))
    return units


def _share_out(kernels: Sequence[KernelSource], count: int) -> list[list[KernelSource]]:
    """Shares of about the same amount of text."""
    shares: list[list[KernelSource]] = [[] for _ in range(count)]
    sizes = [0] * count
    for kernel in sorted(kernels, key=lambda k: -len(k.text)):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(kernel)
        sizes[smallest] += len(kernel.text)
    return shares


def _head(kernel: KernelSource) -> str:
    sizes = ["i64"] * len(kernel.symbols)
    return f"int {kernel.name}({', '.join(('Runtime*', *kernel.types, *sizes))})"


def _declaration(kernel: KernelSource) -> str:
    return f"{_head(kernel)};"


def _export(kernel: KernelSource) -> str:
    return kernel.text.replace(f"static int {kernel.name}(", f"int {kernel.name}(")
