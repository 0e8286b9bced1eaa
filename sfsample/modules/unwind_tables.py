"""The unwind tables of one ELF object, wherever it is mapped.

Law: a table is read on first use; one that is damaged is lost with a word in `problems`, and what remains is
used.  Nothing here depends on a process or an address, so that all processes that map a file share it.
A separate debug file is looked for when the object itself has no `.debug_frame`, by who gave `find`.
"""

from functools import cached_property

from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, eh_frame_address
from sfsample.formats.elf.compressed import section_bytes
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe.section import SECTION, SFrameTables, read_tables
from sfsample.modules.debug_files import DebugFile, Find


class UnwindTables:
    """What `image`, which was mapped from `path`, tells about unwinding."""

    def __init__(self, image: ElfImage, path: str = "", find: Find = lambda *_: DebugFile(None)) -> None:
        self.image = image
        self._path = path
        self._find = find
        self.problems: list[str] = []
        self.followed: object = (
            None  # what unwind/steppers/code_analysis/stepper.py has found out; it lasts as long as this
        )

    @cached_property
    def sframe(self) -> SFrameTables:
        """SFrame tables, usually one; none when there is none or they are damaged."""
        found = self.image.sframe()
        if found is None:
            return SFrameTables()
        machine = (self.image.machine, self.image.byteorder)
        old = bytes(found[0][2:3]) == b"\1"  # V1 comes from an ld whose PLT rows are known by their section
        sections = {s.name: (s.vaddr, s.vaddr + s.size) for s in self.image.sections} if old else None
        try:
            tables = read_tables(*found, machine=machine, executable=self.image.executable, sections=sections)
        except FormatError as damage:
            self.note(str(damage))
            return SFrameTables()
        for table in tables:
            for text in table.problems:
                self.note(f"{SECTION}: {text}")
        return tables

    @cached_property
    def eh_frame(self) -> EhFrame | None:
        """CFI, through `.eh_frame_hdr`; where that is missing or damaged, by the section."""
        try:
            found = self._by_header()
        except FormatError as damage:
            self.note(str(damage))
            found = None
        section = self.image.section(".eh_frame")
        if found is None and section is not None:
            found = EhFrame(self.image.contents(section), section.vaddr, self.image.byteorder)
        return found

    @cached_property
    def debug_frame(self) -> EhFrame | None:
        """CFI for debuggers: all that Go has, and what some libraries, or their debug files, have beside."""
        found = self._debug_frame_of(self.image)
        if found is not None:
            return found
        debug = self._find(self.image, self._path)
        if debug.refused:
            self.note(debug.refused)
        return None if debug.image is None else self._debug_frame_of(debug.image)

    def _debug_frame_of(self, image: ElfImage) -> EhFrame | None:
        try:
            found = section_bytes(image, "debug_frame")
        except FormatError as damage:
            self.note(str(damage))
            return None
        return None if found is None else EhFrame(*found, image.byteorder, debug=True)

    def _by_header(self) -> EhFrame | None:
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
        """Return where the function that covers `vaddr` begins."""
        try:
            fde = self.eh_frame.find(vaddr) if self.eh_frame else None
            found = fde or next(
                (f for table in self.sframe.covering(vaddr) if (f := table.find(vaddr))), None
            )
        except FormatError as damage:
            self.note(str(damage))
            return None
        return None if found is None else found.start

    def note(self, what: str) -> None:
        """Note, once, that something is damaged."""
        if what not in self.problems:
            self.problems.append(what)
