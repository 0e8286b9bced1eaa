"""The door to python-ptrace.

Law: takes its `ptrace()` binding and nothing else.  The binding looks for libc by starting ldconfig(8), and
imports a good part of the standard library for that; it is given the libc that we have loaded already.
"""

import ctypes
import sys
from types import ModuleType

_LIBC = "ptrace.ctypes_libc"
if _LIBC not in sys.modules:
    _module = ModuleType(_LIBC)
    _module.libc = ctypes.CDLL(None, use_errno=True)  # type: ignore[attr-defined]
    sys.modules[_LIBC] = _module

from ptrace import PtraceError  # noqa: E402
from ptrace.binding.func import PTRACE_DETACH, PTRACE_POKEUSER, ptrace  # noqa: E402

__all__ = ["PTRACE_DETACH", "PTRACE_POKEUSER", "PtraceError", "ptrace"]
