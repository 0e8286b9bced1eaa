"""A stack sampler for live Linux processes that unwinds with SFrame.

    import sfsample
    profile = sfsample.record(1234, duration=10)
    print(sfsample.folded(profile))

`sfsample.sframe` reads SFrame sections without a sampler (docs/sframe.md).  The names in `__all__` are the
public library; all other names may change.  `sfsample --help` imports this module and must stay fast, so
each name is imported on first use.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers assume True; an import of `typing` takes longer than this module
if TYPE_CHECKING:
    from typing import Any

    from sfsample.api import folded, named, record, render
    from sfsample.core.python_view import PythonView
    from sfsample.core.rule import CFA, Rule
    from sfsample.core.stack import Found, Frame, Stack, StopReason
    from sfsample.dumping.model import ProcessDump, ThreadDump
    from sfsample.dumping.run import dump
    from sfsample.errors import (
        FormatError,
        NoSuchProcess,
        NotPermitted,
        SfsampleError,
        TargetError,
        UnsupportedTarget,
    )
    from sfsample.formats import sframe
    from sfsample.recording.options import RecordOptions
    from sfsample.recording.profile import Profile
    from sfsample.unwind.row import UnwindRow
    from sfsample.unwind.stepper import Stepper
    from sfsample.unwind.unwinder import DEFAULT_STEPPERS

__version__ = "0.1.0"

__all__ = [
    "CFA", "DEFAULT_STEPPERS", "FormatError", "Found", "Frame", "NoSuchProcess", "NotPermitted",
    "ProcessDump", "Profile", "PythonView", "RecordOptions", "Rule", "SfsampleError", "Stack", "Stepper",
    "StopReason", "TargetError", "ThreadDump", "UnsupportedTarget", "UnwindRow", "dump", "folded",
    "named", "record", "render", "sframe",
]  # fmt: skip

_MODULES = {  # key: module in the package; value: public names that it defines
    "api": "folded named record render",
    "core.python_view": "PythonView",
    "core.rule": "CFA Rule",
    "core.stack": "Found Frame Stack StopReason",
    "dumping.model": "ProcessDump ThreadDump",
    "dumping.run": "dump",
    "errors": "FormatError NoSuchProcess NotPermitted SfsampleError TargetError UnsupportedTarget",
    "recording.options": "RecordOptions",
    "recording.profile": "Profile",
    "unwind.row": "UnwindRow",
    "unwind.stepper": "Stepper",
    "unwind.unwinder": "DEFAULT_STEPPERS",
}


def __getattr__(name: str) -> "Any":  # noqa: ANN401 - a name of the library may have any type
    if name == "sframe":
        return import_module("sfsample.formats.sframe")
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"sfsample.{module}"), name)
    raise AttributeError(f"module 'sfsample' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
