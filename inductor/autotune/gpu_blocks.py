"""Block sizes and warps of generated kernels, found by running them while compiling.

In: a loop graph, its schedule and its printed kernels. Out: the same kernels with one config for
each function: the fastest of the likely ones (`codegen/triton/configs.py`) and, from there, of
neighbours that differ in one number, as long as that helps. A kernel that is nearly as fast as a
copy of what it moves is not tried any further. What is larger than all likely configs
is not tried: the printed text has no mask where these divide the sizes. Small kernels keep the
default: they take as long as a launch takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inductor.autotune.tuning import Candidate, Question, Times, Tuner, make_question_key, part_of
from inductor.codegen.python_wrapper import print_python_wrapper
from inductor.codegen.triton.configs import ANY_NUMBER, Choices, Config, SizeClass, by_factor
from inductor.codegen.triton.print_kernel import TritonKernel, TritonSource
from inductor.ir.extent import hint_of
from inductor.ir.graph import Layout, LoopGraph
from inductor.scheduler.domain import product
from inductor.scheduler.schedule import Kernel, Schedule

ROUNDS = 2  # of neighbours
FEWEST_BYTES = 1 << 20  # that a kernel touches
MOST_WARPS = 16  # of a neighbour; chosen, not measured: bounds what is tried
GAIN = 0.98  # of the time so far: less is noise
LIMIT = 0.9  # of the speed of a copy
LEAST_TIME = 1.0  # microseconds that any kernel takes
Kernels = Mapping[str, TritonKernel]


def tune_blocks(
    graph: LoopGraph, schedule: Schedule, kernels: Kernels, tuner: Tuner
) -> dict[str, TritonKernel]:
    """The kernels with the fastest config of each function."""
    tuned = dict(kernels)
    layouts = graph.layouts()
    steps = [
        step for step in schedule.kernels()
        if step.name in kernels and _bytes_of(step, layouts) >= FEWEST_BYTES
    ]
    most = max((len(kernels[step.name].sources) for step in steps), default=0)
    for number in range(most):
        found = [s for s in steps if _is_undecided(tuned[s.name], number)]
        _Search(graph, found, number, tuner).run(tuned)
    return tuned


def _bytes_of(step: Kernel, layouts: Mapping[str, Layout]) -> int:
    found = [layouts[name] for name in {*step.reads(), *step.writes()}]
    return sum(hint_of(layout.storage_elements()) * layout.dtype.itemsize for layout in found)


def least_bytes(step: Kernel, layouts: Mapping[str, Layout]) -> int:
    """Bytes that the kernel moves for certain: no more of a buffer than it has places for, and
    nothing for what it finds by data."""
    total = 0
    for name in {*step.reads(), *step.writes()}:
        places = 0
        for stage in step.stages:
            for op in stage.ops:
                if op.name in ("load", "store") and op.buffer == name and op.index is not None:
                    variables = list(op.index.variables())
                    if op.args[: op.name == "load"] or any(v.name[0] == "t" for v in variables):
                        continue  # masked, or an index of the data
                    places = max(places, product([hint_of(v.size) for v in variables]))
        layout = layouts[name]
        total += min(places, hint_of(layout.storage_elements())) * layout.dtype.itemsize
    return total


def _is_undecided(kernel: TritonKernel, number: int) -> bool:
    """Whether function `number` of the kernel has several configs for known sizes."""
    if kernel.short is not None or number >= len(kernel.sources):
        return False
    source = kernel.sources[number]
    return len(source.choices.classes) == 1 and all(n.is_constant for n in source.numbers)


def with_config(kernel: TritonKernel, number: int, config: Config) -> TritonKernel:
    """The kernel where one function has this config alone."""
    sources = list(kernel.sources)
    only = Choices(0, (SizeClass(ANY_NUMBER, (config,)),))
    sources[number] = replace(sources[number], choices=only)
    return replace(kernel, sources=tuple(sources))


def neighbours(best: Config, source: TritonSource) -> list[Config]:
    """Configs that differ from the best in one number, by a factor of two."""
    limits = source.choices.all()
    rows = max(config.rows for config in limits)
    columns = max(config.columns for config in limits)
    found = [each for factor in (2.0, 0.5)
             for each in by_factor(best, factor, "rows", "columns", "warps")]
    fixed = len({config.columns for config in limits}) == 1  # a row is one tile, or there is none
    return [
        config for config in found
        if 1 <= config.rows <= rows and 1 <= config.warps <= MOST_WARPS
        and (config.columns == best.columns if fixed else 16 <= config.columns <= columns)
    ]


class _Search:
    """Coordinate descent for function `number` of all kernels at once."""

    def __init__(self, graph: LoopGraph, steps: list[Kernel], number: int, tuner: Tuner) -> None:
        self.graph = graph
        self.steps = steps
        self.number = number
        self.tuner = tuner
        speed = tuner.copied_a_microsecond(graph.device)
        layouts = graph.layouts()
        self.least = {s.name: least_bytes(s, layouts) / speed for s in steps} if speed else {}

    def run(self, kernels: dict[str, TritonKernel]) -> None:
        """Put the kernels with their fastest configs in place."""
        original = {step.name: kernels[step.name] for step in self.steps}
        sources = {name: kernel.sources[self.number] for name, kernel in original.items()}
        tried = {name: list(source.choices.all()) for name, source in sources.items()}
        pending = {name: configs[:1] for name, configs in tried.items()}
        best: dict[str, tuple[float, Config]] = {}
        self._measured(original, pending, best)
        pending = {name: tried[name][1:] for name in pending if self._is_undecided(name, best)}
        for number in range(ROUNDS + 1):
            pending = {name: configs for name, configs in pending.items() if configs}
            better = self._measured(original, pending, best)
            pending = {}
            for name in better if number else list(best):
                if not self._is_undecided(name, best):
                    continue
                new = [c for c in neighbours(best[name][1], sources[name]) if c not in tried[name]]
                tried[name] += new
                pending[name] = new
        for name, (_, config) in best.items():
            kernels[name] = with_config(original[name], self.number, config)

    def _is_undecided(self, name: str, best: Mapping[str, tuple[float, Config]]) -> bool:
        """Whether another config may be faster."""
        least = self.least.get(name, 0.0)
        return name not in best or best[name][0] - LEAST_TIME > least / LIMIT

    def _measured(
        self, kernels: Kernels, pending: Mapping[str, list[Config]],
        best: dict[str, tuple[float, Config]],
    ) -> list[str]:
        """Update the best ones; the kernels for which that was a gain."""
        steps = [step for step in self.steps if step.name in pending]
        questions = [self._question(s, kernels[s.name], pending[s.name]) for s in steps]
        gained = []
        for step, times in zip(steps, self.tuner.answers(questions), strict=True):
            took, config = _fastest(pending[step.name], times)
            if config is not None and (
                step.name not in best or took < GAIN * best[step.name][0]
            ):
                best[step.name] = (took, config)
                gained.append(step.name)
        return gained

    def _question(self, step: Kernel, kernel: TritonKernel, configs: list[Config]) -> Question:
        layouts = self.graph.layouts()
        touched = dict.fromkeys((*step.reads(), *step.writes()))
        key = make_question_key(self.graph.device, {
            "text": "\n".join(source.text for source in kernel.sources),
            "function": str(self.number), "candidates": "; ".join(map(str, configs)),
            "grids": str([source.choices.all()[0] for source in kernel.sources]),
            "dtypes": ", ".join(str(layouts[name].dtype) for name in touched),
        })  # fmt: skip

        def make_candidates() -> list[Candidate]:
            graph, schedule = part_of(self.graph, [step])
            made = [with_config(kernel, self.number, config) for config in configs]
            texts = [print_python_wrapper(graph, schedule, {step.name: each}) for each in made]
            return [
                Candidate(str(config), graph, text)
                for config, text in zip(configs, texts, strict=True)
            ]

        return Question(key, kernel.sources[self.number].name, make_candidates)


def _fastest(configs: list[Config], times: Times) -> tuple[float, Config | None]:
    ran = [(times[str(config)], n) for n, config in enumerate(configs) if str(config) in times]
    if not ran:
        return 0.0, None
    took, number = min(ran)
    return took, configs[number]
