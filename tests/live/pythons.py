"""The interpreters that tests of Python frames run: of each version that the machine has, one.

SFSAMPLE_TEST_PYTHONS adds others: paths with colons between them.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live.targets import assert_untraced

_DATA = Path(__file__).parents[1] / "data"

_GIVEN = [path for path in os.environ.get("SFSAMPLE_TEST_PYTHONS", "").split(":") if path]
_USUAL = ["/usr/bin/python3", sys.executable, *Path.home().glob(".pyenv/versions/3.*/bin/python3")]
_KNOWN = re.compile(r"python3\.1[1-5]t?")


def _interpreters() -> list[Path]:
    usual = [path for path in (Path(each).resolve() for each in _USUAL) if _KNOWN.fullmatch(path.name)]
    one_each = {path.name: path for path in reversed(usual) if path.exists()}
    return sorted({*one_each.values(), *(Path(each).resolve() for each in _GIVEN)})


PYTHONS = _interpreters()


@contextmanager
def running(python: Path, program: str, way: str) -> Iterator[tuple[int, list[int]]]:
    """Start a program of tests/data in a way; yield its pid, and the thread ids that it prints."""
    command = [python, _DATA / program, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            yield target.pid, json.loads(target.stdout.readline())
            assert_untraced(target.pid)
        finally:
            target.kill()
