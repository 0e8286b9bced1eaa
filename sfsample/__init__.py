"""Stack sampler for live Linux processes, unwinding with SFrame.

    import sfsample
    profile = sfsample.record(1234, duration=10)
    print(sfsample.folded(profile))

`sfsample.sframe` is the SFrame reader by itself (docs/sframe.md).  The names below are the library;
everything else may change.  They are loaded on first use, so that importing the package (which the command
line does for `--help`) costs nothing.
"""

TYPE_CHECKING = False  # `typing` costs 3 ms, a tenth of what --help may take
if TYPE_CHECKING:
    from typing import Any

    from sfsample.api import folded, named, record, render
    from sfsample.dumping import dump
    from sfsample.errors import (
        FormatError,
        NoSuchProcess,
        NotPermitted,
        SfsampleError,
        TargetError,
        UnsupportedTarget,
    )
    from sfsample.formats import sframe
    from sfsample.model import Found, Frame, Stack, StopReason
    from sfsample.profile import Profile
    from sfsample.snapshot import ProcessDump, ThreadDump

__version__ = "0.1.0"

__all__ = [
    "FormatError",
    "Found",
    "Frame",
    "NoSuchProcess",
    "NotPermitted",
    "ProcessDump",
    "Profile",
    "SfsampleError",
    "Stack",
    "StopReason",
    "TargetError",
    "ThreadDump",
    "UnsupportedTarget",
    "dump",
    "folded",
    "named",
    "record",
    "render",
    "sframe",
]

_HOMES = {
    "api": ("folded", "named", "record", "render"),
    "dumping": ("dump",),
    "errors": (
        "FormatError",
        "NoSuchProcess",
        "NotPermitted",
        "SfsampleError",
        "TargetError",
        "UnsupportedTarget",
    ),
    "model": ("Found", "Frame", "Stack", "StopReason"),
    "profile": ("Profile",),
    "snapshot": ("ProcessDump", "ThreadDump"),
}


def __getattr__(name: str) -> "Any":  # noqa: ANN401 - module attributes have any type
    from importlib import import_module

    if name == "sframe":
        return import_module("sfsample.formats.sframe")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"sfsample.{home}"), name)
    raise AttributeError(f"module 'sfsample' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
