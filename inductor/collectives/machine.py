"""Links and kernels as numbers: how long collectives and steps of a schedule take.

In: a kind of device, what `config.collectives` says beside its defaults, the ranks of a group. Out:
seconds. What follows from them is which order is taken and which collectives are sent together,
never a value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

# Eight GPUs share a host where nothing says otherwise.
PER_HOST = 8
MAY_BE_NONE = ("megabytes", "same_graphs", "chunks")


@dataclass(frozen=True, slots=True)
class Machine:
    """latency: seconds of a collective of no bytes; hop: what each further rank adds; bandwidth:
    bytes a second that leave one rank. inside: of groups within one host of `per_host` ranks;
    between: of all others. memory_bandwidth, half_operations, operations, launch: of kernels.
    megabytes: how much more memory than in the program's order collectives may take that start
    early or are waited for late. same_graphs: 1 says that all ranks
    have the same graphs, in which the same needs the same, so that small collectives are sent
    together. chunks: into how many GEMMs are split whose result is reduced, or whose operand is
    gathered (`fx_passes/chunked_gemms.py`); 0: none."""

    inside_latency: float
    inside_hop: float
    inside_bandwidth: float
    between_latency: float
    between_hop: float
    between_bandwidth: float
    memory_bandwidth: float
    half_operations: float
    operations: float
    launch: float
    per_host: int = PER_HOST
    megabytes: float = 512
    same_graphs: int = 0
    chunks: int = 0


# An H100 as it is in practice (two thirds of its data sheet) with NVLink, and one port of 400
# Gbit/s for each GPU; gloo on one machine (PyTorch 2.13: 0.2 ms for three numbers, 0.3 s for 64
# MB), and one core of a server.
GPU = Machine(
    inside_latency=10e-6, inside_hop=0.5e-6, inside_bandwidth=300e9,
    between_latency=20e-6, between_hop=1e-6, between_bandwidth=40e9,
    memory_bandwidth=2.5e12, half_operations=6e14, operations=4e13, launch=3e-6,
)  # fmt: skip
CPU = Machine(
    inside_latency=2e-4, inside_hop=1e-4, inside_bandwidth=4e8,
    between_latency=2e-4, between_hop=1e-4, between_bandwidth=4e8,
    memory_bandwidth=6e9, half_operations=3e10, operations=6e10, launch=1e-6,
)  # fmt: skip


def machine_of(device: str, changes: Mapping[str, float] | None = None) -> Machine:
    """The numbers of a device. Errors: ValueError for a name that there is not, or no number.

    >>> machine_of("cuda", {"between_bandwidth": 5e9}).between_bandwidth
    5000000000.0
    """
    known = {field.name for field in fields(Machine)}
    for name, value in (changes or {}).items():
        if name not in known:
            raise ValueError(
                f"collectives: there is no {name!r}; there are {', '.join(sorted(known))}")
        if not isinstance(value, (int, float)) or value < 0 or not (
                value or name in MAY_BE_NONE):
            raise ValueError(f"collectives: {name} takes a number above zero, not {value!r}")
    named = dict(changes or {})
    if named.get("chunks") and not named.get("same_graphs"):
        raise ValueError("collectives: chunks sends more than the program does, so all ranks must "
                         "have the same graphs: same_graphs says so")
    if named.get("chunks", 0) % 1:
        raise ValueError(f"collectives: chunks takes a whole number, not {named['chunks']!r}")
    found = CPU if device == "cpu" else GPU
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", found.per_host))
    changed: dict[str, Any] = {"per_host": per_host, **(changes or {})}
    return replace(found, **changed)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that talk to each other. backend: its name, "" where nothing is known."""

    ranks: tuple[int, ...]
    backend: str = ""


def group_of(name: str, device: torch.device) -> Group | None:
    """The group of a name; None where this process has none."""
    from torch.distributed import distributed_c10d as c10d  # may be missing in a build of torch

    try:
        group: Any = c10d._resolve_process_group(name)  # type: ignore[arg-type]
        ranks = tuple(c10d.get_process_group_ranks(group))
    except (RuntimeError, ValueError, LookupError):
        return None
    try:
        backend = group._get_backend(torch.device(device.type)).name()
    except RuntimeError:  # a process group of the program, which is its own backend
        backend = group.name()
    return Group(ranks, str(backend).lower())


def is_inside(machine: Machine, group: Group) -> bool:
    """Whether all of its ranks share a host."""
    return len({rank // machine.per_host for rank in group.ranks}) <= 1


def latency_of(machine: Machine, kind: str, group: Group) -> float:
    """Seconds of a collective, whatever its size."""
    around = len(group.ranks) - 1
    first, hop = (
        (machine.inside_latency, machine.inside_hop) if is_inside(machine, group)
        else (machine.between_latency, machine.between_hop)
    )
    return first + hop * around * (2 if kind == "all_reduce" else 1)


def bandwidth_of(machine: Machine, group: Group) -> float:
    return machine.inside_bandwidth if is_inside(machine, group) else machine.between_bandwidth


def seconds_of_collective(machine: Machine, kind: str, group: Group, size: int) -> float:
    """size: bytes of the larger side, operand or result. Rings: each rank sends all but its own
    part, twice where it is a sum that all get."""
    count = len(group.ranks)
    sent = size * (count - 1) / max(count, 1) * (2 if kind == "all_reduce" else 1)
    return latency_of(machine, kind, group) + sent / bandwidth_of(machine, group)


def seconds_of_kernel(machine: Machine, moved: int, operations: int, half: bool) -> float:
    """moved: bytes; half: GEMMs of half precision."""
    rate = machine.half_operations if half else machine.operations
    return machine.launch + max(moved / machine.memory_bandwidth, operations / rate)
