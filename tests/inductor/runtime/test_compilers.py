"""g++ and clang++ build what we print, and threads of both are those of torch's OpenMP runtime."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from dynamo.store.clang_openmp import OPENMP_UNIT
from dynamo.store.content import Store
from dynamo.store.toolchain import ONLY_GCC, Toolchain, find_toolchain
from inductor.runtime.build import build_library
from tests.processes import run_python

needs_clang = pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
# Bits of what is wrong: teams, numbers of threads, shares of loops, teams of one inside, sums of bits.
REGIONS = r"""
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();
enum { N = 1037 };
static int a[N], b[N], c[N], seen[64];
extern "C" __attribute__((visibility("default"))) int check(int threads) {
  int bad = 0, bits = 0, team = 0;
  for (int i = 0; i < N; ++i) a[i] = b[i] = c[i] = 0;
  for (int i = 0; i < 64; ++i) seen[i] = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    int inside = 0, one = 1;
    __atomic_fetch_add(&seen[omp_get_thread_num()], 1, __ATOMIC_RELAXED);
    __atomic_store_n(&team, omp_get_num_threads(), __ATOMIC_RELAXED);
#pragma omp for schedule(static)
    for (long i = 0; i < N; ++i) a[i] += 1;
#pragma omp parallel num_threads(one) if (one > 1)
    inside += omp_get_num_threads() * 10 + omp_get_thread_num();
    if (inside != 10) __atomic_fetch_or(&bad, 1, __ATOMIC_RELAXED);
  }
  if (team != threads) bad |= 2;
  for (int i = 0; i < threads; ++i) bad |= (seen[i] != 1) * 4;
#pragma omp parallel for num_threads(threads)
  for (unsigned long i = 3; i < N; i += 2) b[i]++;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
  for (long i = 0; i < N; i += 3) c[i]++;
#pragma omp parallel for num_threads(threads) reduction(| : bits)
  for (int i = 0; i < 20; ++i) bits |= 1 << i;
#pragma omp parallel for num_threads(threads)
  for (int i = 0; i < 0 * threads; ++i) bad |= 8;
  if (bits != (1 << 20) - 1) bad |= 16;
  for (int i = 0; i < N; ++i) bad |= (a[i] != 1 || b[i] != (i >= 3 && i % 2) || c[i] != (i % 3 == 0)) * 32;
  return bad;
}
"""


def toolchain_of(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    monkeypatch.setenv("CXX", compiler)
    found = find_toolchain(Store(tmp_path / "cache"))
    assert isinstance(found, Toolchain), found
    return found


@pytest.mark.parametrize("compiler", ["g++", pytest.param("clang++", marks=needs_clang)])
def test_regions(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = toolchain_of(compiler, tmp_path, monkeypatch)
    path = build_library([REGIONS], toolchain, Store(tmp_path / "cache")).path
    needed = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    assert "libgomp" in needed and "libomp" not in needed
    check = ctypes.CDLL(str(path)).check
    assert [check(threads) for threads in (1, 2, 3, 4, 7)] == [0] * 5


@needs_clang
def test_programs_by_clang() -> None:
    done = run_python("-m", "tests.inductor.runtime.described_programs", "gemms_and_attention", "gradients",
                      CXX="clang++", DYNAMO_PROCESSOR="mkl", DYNAMO_SUPPRESS_ERRORS="0")  # fmt: skip
    assert done.returncode == 0, done.stderr


@needs_clang
@pytest.mark.long
def test_all_programs_by_clang() -> None:
    done = run_python("-m", "tests.inductor.runtime.described_programs", "gemms_and_attention", "gradients", "convolutions",
                      "packages", CXX="clang++", DYNAMO_PROCESSOR="ours", DYNAMO_SUPPRESS_ERRORS="0")  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_flags_that_a_compiler_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that says to be clang and refuses GCC's flag is taken without it, and gets OpenMP's unit."""
    fake = tmp_path / "clang++"
    refused = " ".join(f'{flag}) echo "unknown argument" >&2; exit 1;;' for flag in ONLY_GCC)
    fake.write_text(f"""#!/bin/bash
for each in "$@"; do case $each in --version) echo clang version 99; exit;; {refused} esac; done
for each; do shift; [ "$each" = -Xclang ] || set -- "$@" "$each"; done
exec g++ "$@"
""")
    fake.chmod(0o755)
    toolchain = toolchain_of(str(fake), tmp_path, monkeypatch)
    assert not set(ONLY_GCC) & set(toolchain.compile_flags) and "-lgomp" in toolchain.libraries
    assert toolchain.more_units == (OPENMP_UNIT,) and toolchain.openmp_link_flags == ()


def test_why_a_compiler_can_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "clang++"
    fake.write_text('#!/bin/bash\ncase $1 in --version) echo clang version 99; exit;; esac\necho "no ld here" >&2; exit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    assert find_toolchain(Store(tmp_path / "cache")) == f"{fake} can't compile an empty function: no ld here"
