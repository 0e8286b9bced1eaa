"""Names a place in code by module and vaddr, so that it can be symbolized later or on another machine."""

from collections.abc import Iterable
from typing import NamedTuple

from sfsample.core.stack import Frame
from sfsample.modules.module import Module

PROCESS_KEY_STEP = 1 << 22  # above every pid: PID_MAX_LIMIT, Linux include/linux/threads.h


class PythonPlace(NamedTuple):
    """A line of a Python function.  `first_line` is that of its definition; None: unknown."""

    function: str
    file: str
    line: int | None
    first_line: int | None


class Location(NamedTuple):
    """A place in code.  `address` and `lookup` are vaddrs in `module`, or run-time addresses without one.

    `address` is the pc of the frame; `lookup` is the address to symbolize: one less for a return address.
    `pid` is 0 where there is a module, so that all processes share the location; else it is the key of the
    process whose (generated) code this is.  `found`: how the frame was found.  `kernel`: the name of a kernel
    function, `python` a place in Python; nothing else is known of it then.
    """

    module: Module | None
    address: int
    lookup: int
    pid: int = 0
    found: str = ""
    kernel: str = ""
    python: PythonPlace | None = None


class Located(NamedTuple):
    """The frames of a captured stack with their modules and locations, by the module map's `generation`.

    While the generation and the frames are the same, so are the modules and locations.
    """

    generation: int = -1
    frames: tuple[Frame, ...] = ()
    modules: tuple[Module | None, ...] = ()
    locations: tuple[Location, ...] = ()


def pid_of(process_key: int) -> int:
    """Return the pid of the process that has this key in a profile."""
    return process_key % PROCESS_KEY_STEP


def kernel_locations(functions: Iterable[str], pid: int) -> tuple[Location, ...]:
    """Return the locations of the kernel functions in which a thread of process `pid` sleeps."""
    return tuple(Location(None, 0, 0, pid, kernel=function) for function in functions)


def python_location(place: PythonPlace) -> Location:
    """Return the location of a Python frame."""
    return Location(None, 0, 0, 0, "python", python=place)


def locate(frame: Frame, module: Module | None, pid: int) -> Location:
    """Return the location of a frame of process `pid`."""
    if module is None:
        return Location(None, frame.pc, frame.lookup_pc, pid, frame.found)
    return Location(module, module.vaddr(frame.pc), module.vaddr(frame.lookup_pc), found=frame.found)
