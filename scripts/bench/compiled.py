"""The small C programs that are measured: compiled, started, asked, and ended.

Law: a program is ready when it has written a line; asked by a byte, it answers with numbers in a line.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STACK_BYTES = 256 << 10  # what floor.c copies, as sfsample does


@contextmanager
def running(source: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Give the program of this source, ready; it is killed at the end."""
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
    """Return the program of floor.c, compiled."""
    program = directory / "floor"
    source = Path(__file__).with_name("floor.c")
    subprocess.run(["gcc", "-O2", "-std=c11", "-o", program, source], check=True)
    return program


def ask(target: "subprocess.Popen[str]") -> int:
    """Return the number that the program answers."""
    return int(answer(target))


def answer(target: "subprocess.Popen[str]") -> str:
    """Return the line that the program answers."""
    target.stdin.write("x")
    target.stdin.flush()
    return target.stdout.readline()
