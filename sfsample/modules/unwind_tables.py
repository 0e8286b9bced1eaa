"""Holds the unwind tables of one ELF object.

A table is read on first use.  Nothing here depends on a process or a run-time address, so all processes that
map a file and have the same root directory share one object.

Invariant: `problems` names a damaged table; the other tables are used (tests/modules/test_module.py).
"""

from functools import cached_property

from sfsample.core.filesystem import Root
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, eh_frame_address
from sfsample.formats.elf.image import SHF_COMPRESSED, ElfImage
from sfsample.formats.gopclntab.find import find_table
from sfsample.formats.gopclntab.table import GoTable
from sfsample.formats.sframe import SECTION, SFrameTables, read_tables


class UnwindTables:
    """The tables of `image`, and the root directory of the processes that map `image`."""

    def __init__(self, image: ElfImage, root: Root | None = None) -> None:
        self.image, self.root = image, root
        self.problems: list[str] = []
        # cache that unwind/steppers/code_analysis/stepper.py keeps as long as the tables live
        self.code_analysis: object = None

    @cached_property
    def sframe(self) -> SFrameTables:
        """The SFrame tables, usually one; empty if they are missing or damaged."""
        data = self.image.sframe()
        if data is None:
            return SFrameTables()
        machine = (self.image.machine, self.image.byteorder)
        try:
            tables = read_tables(*data, machine=machine, executable=self.image.executable)
        except FormatError as damage:
            self.note_problem(str(damage))
            return SFrameTables()
        for table in tables:
            for problem in table.problems:
                self.note_problem(f"{SECTION}: {problem}")
        return tables

    @cached_property
    def eh_frame(self) -> EhFrame | None:
        """The CFI of `.eh_frame`, by its section header if `.eh_frame_hdr` is missing or damaged."""
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
        """The CFI of `.debug_frame`, for programs without `.eh_frame`; None: it is missing or compressed."""
        section = self.image.section(".debug_frame")
        if section is None or section.flags & SHF_COMPRESSED:
            return None
        return EhFrame(self.image.contents(section), section.vaddr, self.image.byteorder, debug=True)

    @cached_property
    def go(self) -> GoTable | None:
        """The table of the Go functions; None: it is missing or damaged."""
        try:
            return find_table(self.image)
        except FormatError as damage:
            self.note_problem(str(damage))
            return None

    def function_start(self, vaddr: int) -> int | None:
        """Return the start of the function that covers `vaddr`, by `.eh_frame`, SFrame or Go's table."""
        try:
            fde = self.eh_frame.find(vaddr) if self.eh_frame else None
            if fde is not None:
                return fde.start
            functions = filter(None, (table.find(vaddr) for table in self.sframe.covering(vaddr)))
            start = next((function.start for function in functions), None)
            function = self.go.function_at(vaddr) if start is None and self.go else None
        except FormatError as damage:
            self.note_problem(str(damage))
            return None
        return function.entry if function is not None else start

    def note_problem(self, problem: str) -> None:
        """Add a problem, unless it is in `problems`."""
        if problem not in self.problems:
            self.problems.append(problem)
