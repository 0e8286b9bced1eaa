"""The one door to python-ptrace: its `ptrace()` binding and nothing else.

Its debugger is not used, because it attaches with PTRACE_ATTACH, which sends SIGSTOP.
"""

from ptrace import PtraceError
from ptrace.binding.func import PTRACE_DETACH, PTRACE_POKEUSER, ptrace

__all__ = ["PTRACE_DETACH", "PTRACE_POKEUSER", "PtraceError", "ptrace"]
