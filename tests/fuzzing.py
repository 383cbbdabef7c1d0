"""What all fuzzers share: a command that runs programs of random seeds in processes of their own, and tells what differs.

A `Fuzzer` says how a program comes from a seed, how it is checked, how it shrinks. `main` has the arguments, gives
seeds to processes (`--processes`), so that a crash is a difference too, and prints each difference shrunk. Programs
that a fuzzer can check together (one build for all) are so checked; where they differ, each is checked alone, and what
differs only together is told as that.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from dynamo.base.config import config
from tests.processes import USUAL

T = TypeVar("T")
Options = argparse.Namespace
LONG = 300  # seconds that a check may take
GRACE = 5  # seconds that checks go on when the time is over
CHUNK = 120  # seeds that a process gets at once
FROZEN_EACH = 20  # checks, after which what is there stays: the collections that programs ask for need not look at it


def each_alone(programs: Sequence[T], options: Options) -> Iterable[Sequence[T]]:
    return [[program] for program in programs]


@dataclass(frozen=True)
class Fuzzer(Generic[T]):
    """generate: the program of a seed, None where it is not to be run. check: how it differs with a backend, "" where
    it does not; an error is a difference, too.

    kind: what of such a text stays the same while a program shrinks. groups, check_group: the programs that are
    checked together, and how a group differs, None where it has to be checked in two halves. ties: what was no difference
    of seeds since it was asked last, but would be one if eager's answer did not hang on rounding. prepare: what each
    process does first.
    """

    about: str | None
    backend: str
    generate: Callable[[int, Options], T | None]
    check: Callable[[T, str], str]
    smaller: Callable[[T], Iterable[T]]
    text: Callable[[T], str] = str
    kind: Callable[[str], object] = bool
    add: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    groups: Callable[[Sequence[T], Options], Iterable[Sequence[T]]] = each_alone
    check_group: Callable[[Sequence[T], Options], str | None] | None = None
    modules: tuple[str, ...] = USUAL
    ties: Callable[[], dict[int, str]] = dict
    prepare: Callable[[Options], None] = lambda options: None

    def parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(description=self.about)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--count", type=int, help="programs; 200 where no --seconds are said")
        parser.add_argument("--seconds", type=float, help="begin no program after that time")
        parser.add_argument("--backend", default=self.backend)
        parser.add_argument("--stop", type=int, help="stop after this many differences")
        parser.add_argument("--shrink", type=float, default=100, help="seconds for the shrinking of one difference")
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--resume", type=Path, help="a file of the seeds that are done: they are left out")
        parser.add_argument("--one", action="store_true", help="run the seed's program in this process")
        self.add(parser)
        return parser

    def checked(self, program: T, backend: str) -> str:
        return told(lambda: self.check(program, backend)) or ""

    def report(self, seed: int, program: T, options: Options, end: float = float("inf")) -> str:
        """A difference, shrunk until that time; "" where the program, alone, has none."""
        text = self.checked(program, options.backend)
        if not text:
            return ""
        end, small = min(end, time.monotonic() + options.shrink), program
        while time.monotonic() < end:
            same = (p for p in self.smaller(small) if self.kind(self.checked(p, options.backend)) == self.kind(text))
            found = next(same, None)
            if found is None:
                break
            small = found
        return f"=== seed {seed}: {text}\n{self.text(small)}\n{self.checked(small, options.backend)}\n"

    def main(self) -> int:
        options = self.parser().parse_args()
        if options.one:
            self.prepare(options)
            program = self.generate(options.seed, options)
            text = "" if program is None else self.report(options.seed, program, options)
            print(text or f"{program}\n=== seed {options.seed}: no difference")
            return 1 if text else 0
        for name in self.modules if on_cpu(options) else ():
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        return Run(self, options).finish()


def told(difference: Callable[[], str | None]) -> str | None:
    """What a comparison of eager and compiled tells; an error of it is a difference, too."""
    with config.patch(suppress_errors=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return difference()
        except Exception:
            return "internal error\n" + traceback.format_exc(limit=-4)


def on_cpu(options: Options) -> bool:
    return bool(getattr(options, "device", "cpu") == "cpu")


def work(fuzzer: Fuzzer[T] | str, options: Options, seeds: list[int], alone: bool, pipe: Connection, end: float) -> None:
    """In a child. fuzzer: also the module that has it. Threads of the compiler do not hold its end up."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    gc.set_threshold(20_000, 20, 50)  # with Python's own numbers the collector takes a tenth of the time
    code = 1
    try:
        found = importlib.import_module(fuzzer).FUZZER if isinstance(fuzzer, str) else fuzzer
        found.prepare(options)
        Child(found, options, pipe.send, end).run(seeds, alone)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@dataclass
class Found:
    """What a process tells of seeds. mark: "begun", "done", "skipped", "tie", or "differs" with its report."""

    mark: str
    seeds: list[int]
    text: str = ""


class Child(Generic[T]):
    """One process: it checks the programs of some seeds."""

    def __init__(self, fuzzer: Fuzzer[T], options: Options, tell: Callable[[Found], None], end: float) -> None:
        self.fuzzer, self.options, self.tell, self.end = fuzzer, options, tell, end
        self.checks = itertools.count(1)
        self.wrong: set[int] = set()

    def run(self, seeds: Sequence[int], alone: bool) -> None:
        made = {seed: self.fuzzer.generate(seed, self.options) for seed in seeds}
        self.tell(Found("skipped", [seed for seed, program in made.items() if program is None]))
        seed_of = {id(program): seed for seed, program in made.items()}
        programs = [program for program in made.values() if program is not None]
        for group in (each_alone if alone else self.fuzzer.groups)(programs, self.options):
            self.check({seed_of[id(program)]: program for program in group})

    def usable(self, text: str | None) -> str | None:
        """The text. After an error of a GPU nothing more runs in this process."""
        if text and re.search(r"CUDA error|AcceleratorError", text):
            print(text, file=sys.stderr, flush=True)
            os._exit(3)
        return text

    def check(self, group: dict[int, T]) -> None:
        if time.monotonic() > self.end:
            return
        if next(self.checks) % FROZEN_EACH == 0:
            gc.freeze()
        seeds = list(group)
        self.tell(Found("begun", seeds))
        signal.alarm(LONG + int(self.options.shrink) * len(seeds))
        if len(group) == 1 or self.fuzzer.check_group is None:
            reports = [self.fuzzer.report(seed, program, self.options, self.end) for seed, program in group.items()]
            for seed, text in zip(seeds, reports, strict=True):
                self.usable(text)
                self.tell_of(seed, text)
            self.tell_ties()
            return
        check, programs = self.fuzzer.check_group, list(group.values())
        text = self.usable(told(lambda: check(programs, self.options)))
        if text is None:
            for half in (seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :]):
                self.check({seed: group[seed] for seed in half})
        elif text:
            self.apart(group, text)
        else:
            self.tell(Found("done", seeds))
        self.tell_ties()

    def tell_of(self, seed: int, report: str) -> None:
        self.wrong |= {seed} if report else set()
        self.tell(Found("differs" if report else "done", [seed], report))

    def tell_ties(self) -> None:
        for seed, text in self.fuzzer.ties().items():
            if seed not in self.wrong:
                self.tell(Found("tie", [seed], text))

    def apart(self, group: dict[int, T], text: str) -> None:
        """Each program of a group that differs, alone."""
        reports = {seed: self.fuzzer.report(seed, program, self.options, self.end) for seed, program in group.items()}
        if not any(reports.values()):
            reports[min(group)] = f"=== seeds {sorted(group)} differ together, and none alone: {text}\n"
        for seed, report in reports.items():
            self.tell_of(seed, report)


@dataclass(eq=False)
class Process:
    process: Any
    pipe: Connection
    left: list[int]
    begun: list[int] = field(default_factory=list)


class Run(Generic[T]):
    """All programs of a command."""

    def __init__(self, fuzzer: Fuzzer[T], options: Options) -> None:
        self.fuzzer, self.options, self.start = fuzzer, options, time.monotonic()
        self.end = self.start + (float("inf") if options.seconds is None else options.seconds)
        self.count: Counter[str] = Counter()
        self.ties: Counter[str] = Counter()
        self.wrong: list[int] = []
        self.past = self.read()
        self.chunks = self.cut()
        self.again: list[list[int]] = []  # one after the other, after a crash

    def read(self) -> set[int]:
        """The seeds that are done."""
        past: set[int] = set()
        file = self.options.resume
        for line in file.read_text().splitlines() if file is not None and file.exists() else ():
            mark, seeds = json.loads(line)
            if mark == "tie":
                continue
            past.update(seeds)
            self.wrong += seeds * (mark == "differs")
            self.count["before"] += len(seeds) * (mark != "skipped")
        return past

    def cut(self) -> Iterator[list[int]]:
        options = self.options
        count = 200 if options.count is None and options.seconds is None else options.count
        seeds = itertools.count(options.seed) if count is None else range(options.seed, options.seed + count)
        most = CHUNK if on_cpu(options) else 10 * CHUNK
        size = most if count is None else max(1, min(most, -(-count // options.processes)))
        left = (seed for seed in seeds if seed not in self.past)
        while chunk := list(itertools.islice(left, size)):
            yield chunk

    def finish(self) -> int:
        running: list[Process] = []
        while True:
            while len(running) < self.options.processes and (chunk := self.next_chunk()):
                running.append(self.begin(*chunk))
            if not running:
                break
            if time.monotonic() > self.end + GRACE:
                for one in running:
                    one.process.kill()
                break
            for pipe in wait([one.pipe for one in running], timeout=1):
                one = next(one for one in running if one.pipe is pipe)
                try:
                    self.note(one, one.pipe.recv())
                except EOFError:
                    running.remove(one)
                    self.ended(one)
        return self.told()

    def next_chunk(self) -> tuple[list[int], bool] | None:
        if self.options.stop is not None and len(self.wrong) >= self.options.stop or time.monotonic() > self.end:
            return None
        if self.again:
            return self.again.pop(), True
        chunk = next(self.chunks, None)
        return None if chunk is None else (chunk, False)

    def begin(self, seeds: list[int], alone: bool) -> Process:
        # A forked process can't use a GPU that its parent has looked for, as imports do.
        context: Any = multiprocessing.get_context("fork" if on_cpu(self.options) else "spawn")
        receiving, sending = context.Pipe(duplex=False)
        sys.stdout.flush()
        fuzzer = self.fuzzer if on_cpu(self.options) else sys.modules["__main__"].__spec__.name
        process = context.Process(target=work, args=(fuzzer, self.options, seeds, alone, sending, self.end))
        process.start()
        sending.close()
        return Process(process, receiving, seeds)

    def note(self, one: Process, found: Found) -> None:
        if found.mark == "begun":
            one.begun = found.seeds
            return
        one.left = [seed for seed in one.left if seed not in found.seeds]
        self.count[found.mark] += len(found.seeds)
        if found.mark == "tie":
            self.ties[found.text.split(":")[0]] += 1
            print(f"tie, seed {found.seeds[0]}: {found.text}", flush=True)
        if found.mark == "differs":
            self.wrong += found.seeds
            print(found.text, flush=True)
        if self.options.resume is not None and found.seeds:
            with self.options.resume.open("a") as file:
                file.write(json.dumps([found.mark, found.seeds]) + "\n")

    def ended(self, one: Process) -> None:
        """A process that has crashed: of several programs each runs again alone."""
        one.process.join()
        code = one.process.exitcode
        if not code or not one.left:
            return
        begun = [seed for seed in one.begun if seed in one.left]
        if len(begun) == 1 or not begun:
            text = f"=== seed {(begun or one.left)[0]}: the process ended with status {code}\n"
            program = self.fuzzer.generate(begun[0], self.options) if begun else ""
            self.note(one, Found("differs", begun or one.left[:1], f"{text}{program}\n"))
        else:
            self.again += [[seed] for seed in begun]
        if left := [seed for seed in one.left if seed not in begun]:
            self.chunks = itertools.chain([left], self.chunks)

    def told(self) -> int:
        seconds, options = time.monotonic() - self.start, self.options
        done = self.count["done"] + self.count["differs"]
        print(f"{done} programs from seed {options.seed}, {len(self.wrong)} differ, {self.count['skipped']} not run, {seconds:.0f} s"
              + (f", {self.count['before']} programs before" if self.past else ""))  # fmt: skip
        if self.ties:
            print("no differences, as eager's answer hangs on rounding: " + ", ".join(f"{n} {kind}" for kind, n in self.ties.items()))
        if self.wrong:
            print(f"seeds that differ: {' '.join(map(str, self.wrong))}")
        return 1 if self.wrong else 0
