"""Holds the unwind tables of one ELF object, whatever processes map it, and wherever.

A table is read on first use.  Invariant: a damaged table is dropped and reported in `problems`, and the
others are used (tests/modules/test_module.py).  Nothing here depends on a process or a run-time address, so
that all processes that map a file and have the same root directory share one object.
"""

from functools import cached_property

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, eh_frame_address
from sfsample.formats.elf.compressed import section_bytes
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe import SECTION, SFrameTables, read_tables
from sfsample.modules.debug_files import DebugFile, FindDebugFile


class UnwindTables:
    """The tables of `image`, which was mapped from `path`.

    `find` finds the separate debug file; it is called when the image itself has no `.debug_frame`.  `root` is
    the root directory of the processes; only there, and in that of sfsample, is a debug file searched.
    """

    def __init__(
        self,
        image: ElfImage,
        path: str = "",
        find: FindDebugFile = lambda *_: DebugFile(None),
        root: Root | None = None,
    ) -> None:
        self.image = image
        self.root = root
        self._path = path
        self._find = find
        self.problems: list[str] = []
        # what unwind/steppers/code_analysis/stepper.py has found; it lives as long as the tables
        self.code_analysis: object = None

    @cached_property
    def sframe(self) -> SFrameTables:
        """The SFrame tables, usually one; empty when there is none or they are damaged."""
        found = self.image.sframe()
        if found is None:
            return SFrameTables()
        machine = (self.image.machine, self.image.byteorder)
        is_v1 = bytes(found[0][2:3]) == b"\1"  # the ld that writes V1 has PLT rows known by their section
        sections = {s.name: (s.vaddr, s.vaddr + s.size) for s in self.image.sections} if is_v1 else None
        try:
            tables = read_tables(*found, machine=machine, executable=self.image.executable, sections=sections)
        except FormatError as damage:
            self.note_problem(str(damage))
            return SFrameTables()
        for table in tables:
            for problem in table.problems:
                self.note_problem(f"{SECTION}: {problem}")
        return tables

    @cached_property
    def eh_frame(self) -> EhFrame | None:
        """The CFI of `.eh_frame`, by `.eh_frame_hdr`, or by the section where that is missing or damaged."""
        try:
            found = self._eh_frame_by_header()
        except FormatError as damage:
            self.note_problem(str(damage))
            found = None
        section = self.image.section(".eh_frame")
        if found is None and section is not None:
            found = EhFrame(self.image.contents(section), section.vaddr, self.image.byteorder)
        return found

    @cached_property
    def debug_frame(self) -> EhFrame | None:
        """The CFI of `.debug_frame` in the image or its debug file: Go has only this, some libraries both."""
        found = self._debug_frame_of(self.image)
        if found is not None:
            return found
        debug = self._find(self.image, self._path)
        if debug.refused:
            self.note_problem(debug.refused)
        return None if debug.image is None else self._debug_frame_of(debug.image)

    def _debug_frame_of(self, image: ElfImage) -> EhFrame | None:
        try:
            found = section_bytes(image, "debug_frame")
        except FormatError as damage:
            self.note_problem(str(damage))
            return None
        return None if found is None else EhFrame(*found, image.byteorder, debug=True)

    def _eh_frame_by_header(self) -> EhFrame | None:
        byteorder = self.image.byteorder
        header = self.image.eh_frame_hdr()
        if header is None:
            return None
        vaddr = eh_frame_address(*header, byteorder)
        frames = self.image.loaded(vaddr)
        if frames is None:
            raise FormatError(".eh_frame_hdr", 4, f"points to {vaddr:#x}, which is not loaded")
        return EhFrame(frames, vaddr, byteorder, *header)

    def function_start(self, vaddr: int) -> int | None:
        """Return the start of the function that covers `vaddr`, by `.eh_frame`, else by SFrame; or None."""
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
