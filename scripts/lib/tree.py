"""This tree, for scripts that import from it.

Law: installs nothing; where what sfsample depends on is not there, it says how to make it.
"""

import importlib.util
import os
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
_PYTHON = TREE / ".venv/bin/python"


def enter() -> None:
    """Let `sfsample` and `tests` be imported; begin again in .venv if this Python lacks what they want."""
    if importlib.util.find_spec("elftools") is None:
        if not _PYTHON.exists() or Path(sys.executable) == _PYTHON:
            sys.exit(f"{sys.argv[0]}: wants what sfsample depends on: run scripts/setup dev first")
        os.execv(_PYTHON, [str(_PYTHON), *sys.argv])  # noqa: S606 - our own script again
    sys.path.insert(0, str(TREE))
