"""Runs tests of a library twice, as they are and inlined, in processes of their own.

    python -m tests.third_party.runs NAME [PATH..] [--only TEXT] [--limit SECONDS] [--all]

PATH: files or folders inside of the library's source, instead of those of `libraries.txt`; --only: part
of a test's name; --all: exclusions count for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.lists import is_excluded
from tests.third_party.sources import HERE, SITE, libraries, unpacked

ROOT = Path(__file__).parents[2]
PLUGIN = HERE / "plugin"  # by itself, since the libraries have a package `tests`, too
LIMIT = 60.0  # seconds that one test may take
LIMIT_OF_PROCESS = 7200.0
WITHOUT_C = {"WCWIDTH_PYTHON": "1"}  # asks for the part in Python, where there is one in C
OPTIONS = """-q -p inlining_plugin -p no:cacheprovider -p no:faulthandler -p no:xdist
-o addopts= --tb=short --continue-on-collection-errors""".split()


@dataclass
class Report:
    """passed: how many tests pass inlined, too; different: what became of the others."""

    passed: int = 0
    different: dict[str, str] = field(default_factory=dict)


def compare(
    source: Path, paths: tuple[str, ...], folder: Path, *, excluded_as: str = "", only: str = "",
    limit: float = LIMIT,
) -> Report:
    """excluded_as: the name of the library whose exclusions hold."""
    report = Report()
    plain = run(source, paths, folder / "plain", limit)
    wanted = [name for name, (outcome, _) in plain.items() if outcome == "passed"
              and only in name and not is_excluded(excluded_as, name, HERE)]
    if wanted:
        again = run(source, paths, folder / "inlined", limit, wanted)
        for name in wanted:
            outcome, text = again.get(name, ("nothing was told of it", ""))
            if outcome == "passed":
                report.passed += 1
            else:
                report.different[name] = f"{outcome}: {text}"
    return report


def run(
    source: Path, paths: tuple[str, ...], folder: Path, limit: float,
    wanted: list[str] | None = None,
) -> dict[str, tuple[str, str]]:
    """The outcome and the text of each test. wanted: these alone, inlined. A process that a test has
    ended is followed by one that does the rest."""
    folder.mkdir(parents=True)
    results, only, errors = folder / "results", folder / "only", folder / "errors"
    results.touch()
    environment = os.environ | WITHOUT_C | {
        "PYTHONPATH": os.pathsep.join(map(str, (source / "src", source, SITE, PLUGIN, ROOT))),
        "RESULTS": str(results), "LIMIT": str(limit)}
    if wanted is not None:
        only.write_text("\n".join(wanted))
        environment |= {"ONLY": str(only), "INLINED": "1"}
        paths = tuple(dict.fromkeys(name.partition("::")[0] for name in wanted))
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-m", "pytest", *OPTIONS,
               f"--rootdir={source}", *paths]
    outcomes: dict[str, tuple[str, str]] = {}
    while True:
        with open(errors, "w") as output:
            subprocess.run(command, cwd=source, env=environment, stdin=subprocess.DEVNULL,
                           stdout=output, stderr=output, timeout=LIMIT_OF_PROCESS)
        told = [json.loads(line) for line in results.read_text().splitlines()]
        for fact in told:
            if fact["what"] == "end":
                outcomes[fact["name"]] = fact["outcome"], fact["text"]
        last = told[-1] if told else {"what": "nothing"}
        if last["what"] == "done":
            return outcomes
        text = errors.read_text(errors="replace")[-3000:]
        if last["what"] != "begin" or last["name"] in outcomes:
            raise RuntimeError(f"the tests ended behind {last}: {text}")
        outcomes[last["name"]] = "ended the process", text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=LIMIT)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    library = libraries()[arguments.name]
    with tempfile.TemporaryDirectory() as folder:
        report = compare(
            unpacked(library), tuple(arguments.paths) or library.tests, Path(folder),
            excluded_as="" if arguments.all else library.name, only=arguments.only,
            limit=arguments.limit)
    for name, text in report.different.items():
        print(f"{name}: {text}\n")
    print(f"{library.name}: {report.passed} passed, {len(report.different)} different")
    sys.exit(bool(report.different))


if __name__ == "__main__":
    main()
