"""A place in code: a module and a vaddr in it, so that it can be named later and on another machine."""

from collections.abc import Iterable
from typing import NamedTuple

from sfsample.core.stack import Frame
from sfsample.modules.module import Module

PROCESS_NUMBER_STEP = 1 << 22  # all are smaller: PID_MAX_LIMIT, Linux include/linux/threads.h


class Location(NamedTuple):
    """A place in code.  `address` and `lookup` are vaddrs in `module`, or run-time addresses without one.

    `address` is where the frame's pc is, `lookup` what to look up (one less for a return address).  Without a
    module the place is one of process `pid` (a JIT's, say); with one, `pid` is 0: the same place for all.
    `found` says how the frame was found.  `kernel`: a function of the kernel; nothing else is known of it.
    """

    module: Module | None
    address: int
    lookup: int
    pid: int = 0
    found: str = ""
    kernel: str = ""


class Located(NamedTuple):
    """The frames that a look has found, and where they were by the modules of that generation.

    As long as these are the same, so are the modules and locations of equal frames.
    """

    generation: int = -1
    frames: tuple[Frame, ...] = ()
    modules: tuple[Module | None, ...] = ()
    locations: tuple[Location, ...] = ()


def pid_of(number: int) -> int:
    """Return the pid of a process, given its number."""
    return number % PROCESS_NUMBER_STEP


def kernel_places(functions: Iterable[str], pid: int) -> tuple[Location, ...]:
    """Return the places of functions of the kernel in which a thread of process `pid` sleeps."""
    return tuple(Location(None, 0, 0, pid, kernel=function) for function in functions)


def locate(frame: Frame, module: Module | None, pid: int) -> Location:
    """Return where a frame of process `pid` is."""
    if module is None:
        return Location(None, frame.pc, frame.lookup_pc, pid, frame.found)
    return Location(module, module.vaddr(frame.pc), module.vaddr(frame.lookup_pc), found=frame.found)
