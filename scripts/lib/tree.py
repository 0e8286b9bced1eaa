"""Makes `sfsample` and `tests` importable for scripts."""

import importlib.util
import os
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
_PYTHON = TREE / ".venv/bin/python"


def enter() -> None:
    """Extend sys.path; restart in .venv if this Python lacks the dependencies."""
    if importlib.util.find_spec("elftools") is None:
        if not _PYTHON.exists() or Path(sys.executable) == _PYTHON:
            sys.exit(f"{sys.argv[0]}: the dependencies of sfsample are missing: run scripts/setup dev first")
        os.execv(_PYTHON, [str(_PYTHON), *sys.argv])  # noqa: S606 - the same script again
    sys.path.insert(0, str(TREE))
