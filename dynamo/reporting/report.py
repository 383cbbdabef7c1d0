"""`report(path)` and `DYNAMO_REPORT`: writes the page.

In: a path. Out: a page there, and a Chrome trace beside it.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dynamo.backends.services import service
from dynamo.base import events, logs
from dynamo.base.config import config
from dynamo.reporting.eager import eager_times
from dynamo.reporting.facts import Report, gather
from dynamo.reporting.page import page
from dynamo.reporting.timeline import chrome_trace
from dynamo.store.content import cache_store, make_key
from dynamo.store.processor import processor

FOLDER = "dynamo_report"


def report(path: str | os.PathLike[str] | None = None) -> Path:
    """Writes one HTML page about all that was compiled since the start or the last `reset`: the
    program line by line, breaks with remedies, recompiles, graphs, guards, kernels with times and
    rates, eager's time beside them, memory, when what happened, the cache. It needs no network and
    no other file.

    path: a file that ends in .html, or a folder; without it `config.report`, or `dynamo_report`.
    Returns the page's path; a Chrome trace lies beside it. Times, pictures of graphs and loops are
    there where `config.report` (DYNAMO_REPORT=folder) was set before compiling; that also writes
    the page at the end of the process.
    """
    given = Path(path or config.report or FOLDER)
    file = given if given.suffix == ".html" else given / _name_of_process()
    file.parent.mkdir(parents=True, exist_ok=True)
    trace = file.with_name(f"{file.stem}_trace.json")
    found = gather()
    busy = _is_busy()
    found = replace(found, peaks=_peaks(found), is_busy=busy,
                    eager={} if busy else eager_times(found))
    trace.write_text(chrome_trace(found))
    file.write_text(page(found, trace.name))
    return file


def _name_of_process() -> str:
    """Several processes of a program that is spread over devices have a page each."""
    rank = os.environ.get("RANK", "")
    return f"report_rank{rank}.html" if rank else "report.html"


@functools.cache
def start() -> None:
    """From now on times are kept; the page is written when the process ends."""
    service("launcher").keep_times(True)
    atexit.register(_at_exit)


def stop() -> None:
    """Undoes it."""
    if start.cache_info().currsize:
        service("launcher").keep_times(False)
        atexit.unregister(_at_exit)
        start.cache_clear()


def _at_exit() -> None:
    if not events.events("frame") or not config.report:
        return
    try:
        logs.tell(f"dynamo: the report is {report()}")
    except Exception as error:  # the program has ended well
        sys.stderr.write(f"dynamo: no report ({type(error).__name__}: {error})\n")


# -- the machine ----------------------------------------------------------------------------------


def _peaks(found: Report) -> dict[str, Any]:
    """Of each kind of device with timed kernels."""
    rates: dict[str, list[float]] = {}
    for part in found.parts():
        if part.seconds or part.device != "cpu":
            rates.setdefault(part.device.partition(":")[0], []).extend(
                step.operations / step.fastest for step in part.steps if step.fastest)
    peaks = {kind: _peaks_of(kind) for kind in rates}
    return {kind: _at_least(peaks[kind], max(reached, default=0.0))
            for kind, reached in sorted(rates.items()) if peaks[kind] is not None}


def _is_busy() -> bool:
    """True where other work takes the cores: what is measured then says nothing of the machine."""
    return os.getloadavg()[0] > (os.cpu_count() or 1) + 1


def _at_least(peaks: Any, rate: float) -> Any:
    """The peaks of a machine that was busy when they were measured are not below what it did."""
    return replace(peaks, flops=max(peaks.flops, rate))


@functools.cache
def _peaks_of(kind: str) -> Any:
    """What a large GEMM and a large copy reach: measured once for each machine, and kept in the
    cache folder. None where the machine is busy."""
    cost, store = service("costs"), cache_store()
    device = torch.cuda.get_device_name() if kind == "cuda" else processor().text
    key = make_key("peaks", {"device": device, "threads": str(torch.get_num_threads()),
                             "torch": torch.__version__})  # fmt: skip
    if kind == "cpu" and _is_busy() and store.values(key) is None:
        return None
    return cost.Peaks(*store.remembered(key, lambda: _measured(cost, kind)))


def _measured(cost: Any, kind: str) -> tuple[float, float]:
    peaks = cost.measure_peaks(kind)
    return peaks.flops, peaks.bandwidth
