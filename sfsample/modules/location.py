"""Defines a place in code by module and vaddr, so that the place can be named later or elsewhere."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sfsample.core.stack import Frame
from sfsample.modules.module import Module

IN_POOL = "pool"  # `found` of a long wait at a condition variable at which other threads also wait
HELD_BY = "[held by]"  # start of the frame between a waiter and the holder of its lock (--blame)
# frames instead of the holder's stack: the stack was not captured; any of several threads may hold the lock
NO_STACK = UNSEEN, ONE_OF_SEVERAL = "[stack not captured]", "[one of several threads]"
PROCESS_KEY_STEP = 1 << 22  # number above every pid: PID_MAX_LIMIT, Linux include/linux/threads.h
# beginning of the path of an installed file: a directory of packages, or of the standard library
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/|.*/lib(?:64)?/python3(?:\.\d+t?|\d+\.zip)/")


class PythonPlace(NamedTuple):
    """A line of a Python function."""

    function: str
    file: str
    line: int | None  # line that was executed; None: unknown
    first_line: int | None  # line of the function's definition; None: unknown
    path: str = ""  # path relative to an entry of sys.path: "flask/app.py"; "": not determined


def import_path(file: str, directories: Sequence[str] = ()) -> str:
    """Return the path of a Python file relative to its entry of sys.path: "flask/app.py", "app.py".

    `directories`: entries of sys.path for the program's own files, the deepest first.  A file in no such
    directory gets its base name.  Other files do not change the answer, so a function keeps its name.
    """
    if installed := _INSTALLED.match(file):
        return file[installed.end() :]
    own = (f"{directory}/" for directory in directories)
    entry = next(filter(file.startswith, own), file[: file.rfind("/") + 1] if file.startswith("/") else "")
    return file.removeprefix(entry).removeprefix("./")


class GeneratedFunction(NamedTuple):
    """The JIT-compiled function that covered an address when the address was sampled."""

    name: str  # "": the perf map had no name for the address
    start: int  # run-time address


class WaitPlace(NamedTuple):
    """The wait of a thread, which is the innermost frame of the thread's stack."""

    text: str  # "mutex", "recvfrom: postgresql:5432"; without words that change, such as descriptors
    category: str  # a `WaitClass`; "": frame between a waiter and a holder
    is_idle: bool = False  # True: the thread waits for work, so its wait is no fault


class Location(NamedTuple):
    """Native code, a kernel function, a line of Python, or a wait (`address`: its global lock variable)."""

    module: Module | None
    address: int  # pc of the frame: a vaddr in `module`; without a module, a run-time address
    lookup: int  # address to look up in symbols: `address`, or `address` - 1 for a return address
    pid: int = 0  # key of the process with this generated code; 0: all processes share the location
    found: str = ""  # label of the frame
    kernel: str = ""  # name of a kernel function
    python: PythonPlace | None = None
    generated: GeneratedFunction | None = None  # function of generated code; None: not looked up
    wait: WaitPlace | None = None


class Located(NamedTuple):
    """The frames of a captured stack, with their modules and locations."""

    generation: int = -1  # generation of the module map; equal frames of one generation have equal locations
    frames: tuple[Frame, ...] = ()
    modules: tuple[Module | None, ...] = ()
    locations: tuple[Location, ...] = ()
    names: int = 0  # version of the names of generated code


def pid_of(process_key: int) -> int:
    """Return the pid of the process with this key in a profile."""
    return process_key % PROCESS_KEY_STEP


def kernel_locations(functions: Iterable[str], pid: int) -> tuple[Location, ...]:
    """Return the locations of the kernel functions in which a thread of process `pid` was."""
    return tuple(Location(None, 0, 0, pid, kernel=function) for function in functions)


def python_location(place: PythonPlace) -> Location:
    """Return the location of a Python frame."""
    return Location(None, 0, 0, 0, "python", python=place)


def locate(frame: Frame, module: Module | None, pid: int) -> Location:
    """Return the location of a frame of process `pid`."""
    if module is None:
        return Location(None, frame.pc, frame.lookup_pc, pid, frame.found)
    return Location(module, module.vaddr(frame.pc), module.vaddr(frame.lookup_pc), found=frame.found)
