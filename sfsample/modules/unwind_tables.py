"""Holds the unwind tables of one ELF object.

A table is read on first use.  Nothing here depends on a process or a run-time address, so all processes that
map a file and have the same root directory share one object.

Invariant: a damaged table is not used, and reported in `problems`; the other tables are used
(tests/modules/test_module.py).
"""

from functools import cached_property

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, eh_frame_address
from sfsample.formats.elf.compressed import section_bytes
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.gopclntab.find import find_table
from sfsample.formats.gopclntab.table import GoTable
from sfsample.formats.sframe import SECTION, SFrameTables, read_tables
from sfsample.modules.debug_files import DebugFile, FindDebugFile


class UnwindTables:
    """The tables of `image`, which was mapped from `path`.

    `find` finds the separate debug file.  It is called if the image itself has no `.debug_frame`. `root` is
    the root directory of the processes.  Debug files are searched there, and in sfsample's own root.
    """

    def __init__(
        self, image: ElfImage, path: str = "", find: FindDebugFile = lambda *_: DebugFile(None),
        root: Root | None = None,
    ) -> None:  # fmt: skip
        self.image, self.root, self._path, self._find = image, root, path, find
        self.problems: list[str] = []
        # cache of unwind/steppers/code_analysis/stepper.py, which lives as long as the tables
        self.code_analysis: object = None

    @cached_property
    def sframe(self) -> SFrameTables:
        """The SFrame tables, usually one; empty if there is none, or if they are damaged."""
        data = self.image.sframe()
        if data is None:
            return SFrameTables()
        machine = (self.image.machine, self.image.byteorder)
        is_v1 = bytes(data[0][2:3]) == b"\1"  # version whose wrong PLT rows are known by their section
        sections = {s.name: (s.vaddr, s.vaddr + s.size) for s in self.image.sections} if is_v1 else None
        try:
            tables = read_tables(*data, machine=machine, executable=self.image.executable, sections=sections)
        except FormatError as damage:
            self.note_problem(str(damage))
            return SFrameTables()
        for table in tables:
            for problem in table.problems:
                self.note_problem(f"{SECTION}: {problem}")
        return tables

    @cached_property
    def eh_frame(self) -> EhFrame | None:
        """The CFI of `.eh_frame`; its section header counts if `.eh_frame_hdr` is missing or damaged."""
        byteorder, header = self.image.byteorder, self.image.eh_frame_hdr()
        try:
            if header is not None:
                vaddr = eh_frame_address(*header, byteorder)
                frames = self.image.loaded(vaddr)
                if frames is not None:
                    return EhFrame(frames, vaddr, byteorder, *header)
                self.note_problem(f".eh_frame_hdr+0x4: points to {vaddr:#x}, which is not loaded")
        except FormatError as damage:
            self.note_problem(str(damage))
        section = self.image.section(".eh_frame")
        return EhFrame(self.image.contents(section), section.vaddr, byteorder) if section else None

    @cached_property
    def debug_frame(self) -> EhFrame | None:
        """The CFI of `.debug_frame` in the image, or in its debug file.  Go programs have only this CFI."""
        debug_frame = self._debug_frame_of(self.image)
        if debug_frame is None:
            debug = self._find(self.image, self._path)
            if debug.refused:
                self.note_problem(debug.refused)
            debug_frame = self._debug_frame_of(debug.image) if debug.image else None
        return debug_frame

    def _debug_frame_of(self, image: ElfImage) -> EhFrame | None:
        try:
            section = section_bytes(image, ".debug_frame")
        except FormatError as damage:
            self.note_problem(str(damage))
            return None
        return None if section is None else EhFrame(*section, image.byteorder, debug=True)

    @cached_property
    def go(self) -> GoTable | None:
        """The table of the Go functions; None if there is none, or if it is damaged."""
        try:
            return find_table(self.image)
        except FormatError as damage:
            self.note_problem(str(damage))
            return None

    def function_start(self, vaddr: int) -> int | None:
        """Return the start of the function that covers `vaddr`, by `.eh_frame` or by SFrame; or None."""
        try:
            fde = self.eh_frame.find(vaddr) if self.eh_frame else None
            if fde is not None:
                return fde.start
            functions = filter(None, (table.find(vaddr) for table in self.sframe.covering(vaddr)))
            return next((function.start for function in functions), None)
        except FormatError as damage:
            self.note_problem(str(damage))
            return None

    def note_problem(self, problem: str) -> None:
        """Add a text to the problems, once."""
        if problem not in self.problems:
            self.problems.append(problem)
