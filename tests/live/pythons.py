"""The interpreters that tests of Python frames run: of each version that the machine has, one.

SFSAMPLE_TEST_PYTHONS adds others: paths with colons between them.
"""

import os
import re
import sys
from pathlib import Path

_GIVEN = [path for path in os.environ.get("SFSAMPLE_TEST_PYTHONS", "").split(":") if path]
_USUAL = ["/usr/bin/python3", sys.executable, *Path.home().glob(".pyenv/versions/3.*/bin/python3")]
_KNOWN = re.compile(r"python3\.1[1-5]t?")


def _interpreters() -> list[Path]:
    usual = [path for path in (Path(each).resolve() for each in _USUAL) if _KNOWN.fullmatch(path.name)]
    one_each = {path.name: path for path in reversed(usual) if path.exists()}
    return sorted({*one_each.values(), *(Path(each).resolve() for each in _GIVEN)})


PYTHONS = _interpreters()
