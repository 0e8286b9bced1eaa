"""Compiles, starts, queries and ends the C programs of the benchmarks.

A program writes a line when it is ready; for each byte of input it writes a line of numbers.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STACK_BYTES = 256 << 10  # that floor.c copies, as sfsample does


@contextmanager
def running(source: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Yield the running program of this source; kill it at the end."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "target")
        compiler = ["gcc", "-O2", "-pthread", "-x", "c", "-", "-o", program]
        subprocess.run(compiler, input=source, text=True, check=True)
        words = [program, *map(str, arguments)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
            try:
                target.stdout.readline()
                yield target
            finally:
                target.kill()


def floor(directory: Path) -> Path:
    """Compile floor.c; return the program."""
    program = directory / "floor"
    source = Path(__file__).with_name("floor.c")
    subprocess.run(["gcc", "-O2", "-std=c11", "-o", program, source], check=True)
    return program


def ask(target: "subprocess.Popen[str]") -> int:
    """Return the number in the program's answer."""
    return int(answer(target))


def answer(target: "subprocess.Popen[str]") -> str:
    """Send a byte; return the line of the program's answer."""
    target.stdin.write("x")
    target.stdin.flush()
    return target.stdout.readline()
