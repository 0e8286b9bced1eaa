"""Compiles C programs with gcc and runs them as targets; unpacks programs that Go has built.

Without gcc the tests are skipped (`needs_gcc`).
"""

import lzma
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfsample.core.arch import AARCH64, AMD64
from tests.live.targets import ARCH

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the target with")


_GO = Path(__file__).parents[1] / "fixtures" / "go"
GO_VERSIONS = ["1.19", "1.24", "1.27"] if ARCH is AMD64 else ["1.19", "1.27"]
needs_go = pytest.mark.skipif(ARCH not in (AMD64, AARCH64), reason="no Go programs for this machine")
LOOP_TURNS = 20_000_000 if ARCH is AMD64 else 500_000_000  # longer than a sample takes, also under emulation
# Loads and unloads a.so and b.so in turn, which therefore get the same addresses.
HOST = """
#include <dlfcn.h>
#include <stdio.h>
typedef void (*work)(void);
__attribute__((noinline)) void run_a(work f) { f(); __asm__ volatile(""); }
__attribute__((noinline)) void run_b(work f) { f(); __asm__ volatile(""); }
int main(void)
{
    puts("ready"); fflush(stdout);
    for (;;) {
        void *a = dlopen("./a.so", RTLD_NOW); run_a((work)dlsym(a, "entry")); dlclose(a);
        void *b = dlopen("./b.so", RTLD_NOW); run_b((work)dlsym(b, "entry")); dlclose(b);
    }
}
"""


def compile_c(directory: Path, name: str, source: str, *flags: str) -> Path:
    """Compile C source to DIRECTORY/NAME; return its path."""
    path = directory / name
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", path, *flags], input=source, text=True, check=True)
    return path


@contextmanager
def started(
    program: Path, stdin: int | None = None, wrapper: Sequence[str] = ()
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a program that prints `ready`, and wait for it; kill and reap the program at the end."""
    with subprocess.Popen(
        [*wrapper, program], cwd=program.parent, stdin=stdin, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def unpack_go(directory: Path, name: str, version: str) -> Path:
    """Return the program `name` as Go `version` has built it (scripts/build-go-fixtures), in a directory."""
    program = directory / name
    place = _GO if ARCH is AMD64 else _GO / ARCH.name
    program.write_bytes(lzma.decompress((place / f"{name}-{version}.xz").read_bytes()))
    program.chmod(0o755)
    return program
