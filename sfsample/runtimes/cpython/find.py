"""Finds CPython in a process: `_PyRuntime`, and the version of the interpreter.

CPython is in the program, or in a library with "python" in its path (libpython3.13.so, python3_plugin.so).
sfsample finds `_PyRuntime` by its dynamic symbol, by its section, or, from 3.13 on, by its first bytes.  For
3.11 and 3.12, the variable `Py_Version` has the version.  If a stripped program lacks the symbol of this
variable, the structures in memory show the version.

Source: `GENERATE_DEBUG_SECTION(PyRuntime, ...)` in Python/pylifecycle.c, `Py_Version` in Python/getversion.c.
"""

from typing import NamedTuple

from sfsample.core.memory import ReadMemory, word_in
from sfsample.errors import BadInput
from sfsample.formats.elf.dynamic import Dynamic, find_symbol
from sfsample.formats.elf.image import PF_W, PT_LOAD, SHT_SYMTAB, ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.runtimes.cpython.layout import COOKIE, FIXED, MAX_TABLE_BYTES, Layout, layout_of

_MAX_TID = 1 << 22  # greatest thread id: PID_MAX_LIMIT, include/linux/threads.h
_NAME, _SECTION = "python", ".PyRuntime"
_EXTENSION = ".cpython-"  # in names of extension modules, which have no interpreter: they are opened last
_MAX_DATA_BYTES = 64 << 20  # bytes of a data segment that are searched


class NotStarted(BadInput):
    """The interpreter's structures are not in memory yet: the program has not called Py_Initialize."""


class Interpreter(NamedTuple):
    """CPython in a process."""

    mapping: Mapping  # mapping of the interpreter's code
    runtime: int  # address of `_PyRuntime`
    layout: Layout
    program: tuple[Mapping, ...] = ()  # mapping of the program's code, if CPython is a library

    @property
    def code(self) -> tuple[Mapping, ...]:
        """Return the mappings in which compiled Python functions may lie."""
        return self.mapping, *self.program


def find_interpreter(
    modules: ModuleMap, read: ReadMemory, without: set[Module] | None = None
) -> Interpreter | None:
    """Return the interpreter of a process; None: no interpreter.

    `read` reads the memory of the process.  `without` collects modules without an interpreter: a later call
    skips these modules, because searching the symbols of a large program takes long.  Raises BadInput if the
    version of the interpreter is unknown, and NotStarted if a later call may find the version.
    """
    skipped = set[Module]() if without is None else without
    seen: set[str] = set()
    program: tuple[Mapping, ...] = ()
    for mapping in sorted(modules.mappings, key=lambda mapping: _EXTENSION in mapping.path):
        if mapping.executable and mapping.path not in seen and (not seen or _NAME in mapping.path):
            seen.add(mapping.path)
            module = modules.find(mapping.start)
            if module is None or module in skipped:
                continue
            if (interpreter := _find_in(module, mapping, read)) is not None:
                return interpreter._replace(program=program)
            program = program or (mapping,)
            skipped.add(module)
    return None


def _find_in(module: Module, mapping: Mapping, read: ReadMemory) -> Interpreter | None:
    dynamic, image = Dynamic(module.image), module.image
    at = dynamic.find("_PyRuntime")
    if at is None:
        at = _by_section(image)
    if at is None:
        return None
    runtime = module.address(at)
    table = read(runtime, MAX_TABLE_BYTES) or b""
    if table[: len(COOKIE)] == COOKIE:
        number = int.from_bytes(table[8:16], "little")
    else:
        records, strings = image.symbols(SHT_SYMTAB) or (memoryview(b""), memoryview(b""))
        version = dynamic.find("Py_Version") or find_symbol(records, strings, "Py_Version", image.byteorder)
        if version is None:
            return Interpreter(mapping, runtime, _by_shape(runtime, read))
        number = int.from_bytes(read(module.address(version), 4) or b"", "little")
    if not number:
        raise NotStarted("the memory of the interpreter cannot be read")
    return Interpreter(mapping, runtime, layout_of(number, table))


def _by_shape(runtime: int, read: ReadMemory) -> Layout:
    """Return the layout, of 3.11 or 3.12, that fits the structures in memory.  Raises BadInput.

    At the right offset, the interpreter points to a thread state that points back to the interpreter.
    """

    def word(address: int) -> int:
        return word_in(read(address, 8))

    interpreter = word(runtime + FIXED[12].interpreters)
    if not interpreter:
        raise NotStarted("the interpreter has not started, and no symbol has its version")
    threads = ((layout, word(interpreter + layout.threads)) for layout in FIXED.values())
    fitting = [layout for layout, thread in threads
               if word(thread + layout.thread_interpreter) == interpreter
               and 0 < word(thread + layout.native_thread_id) <= _MAX_TID]  # fmt: skip
    if len(fitting) != 1:
        raise BadInput("no symbol has the version of Python, and the memory does not fit 3.11 or 3.12: "
                       "this Python is older")  # fmt: skip
    return fitting[0]


def _by_section(image: ElfImage) -> int | None:
    """Return the vaddr of `_PyRuntime`, by its section, or by its first bytes in a data segment."""
    section = image.section(_SECTION)
    if section is not None:
        return section.vaddr
    for segment in image.segments if not image.sections else ():
        if segment.type == PT_LOAD and segment.flags & PF_W:
            data = image.data[segment.offset : segment.offset + min(segment.filesz, _MAX_DATA_BYTES)]
            if (at := bytes(data).find(COOKIE)) >= 0:
                return segment.vaddr + at
    return None
