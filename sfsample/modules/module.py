"""A module: one ELF object as it is mapped, with the unwind tables it carries.

Law: `address == vaddr + load_bias` is written here and nowhere else.  A table is read on first use; one
that is damaged is lost with a word in `problems`, and the module lives on with what remains.
"""

from functools import cached_property

from sfsample.errors import FormatError
from sfsample.formats.calls import call_target, ends_in_call, is_stub, longest_call, may_share_function
from sfsample.formats.compressed import section_bytes
from sfsample.formats.eh_frame import EhFrame, eh_frame_address
from sfsample.formats.elf import ElfImage
from sfsample.formats.sframe import SECTION, SFrameTables, read_tables
from sfsample.model import Address, Vaddr

_LONGEST_LEAF = 4096
_STUB = 16


class Module:
    """`image` mapped with `load_bias`; `path` as the target sees it."""

    def __init__(self, image: ElfImage, load_bias: int, path: str) -> None:
        self.image = image
        self.load_bias = load_bias
        self.path = path
        self._problems: list[str] = []

    def __repr__(self) -> str:
        return f"<Module {self.path} at {self.load_bias:#x}>"

    @property
    def build_id(self) -> str | None:
        """The GNU build-id in hexadecimal."""
        return self.image.build_id

    def vaddr(self, address: int) -> Vaddr:
        """Return where the ELF file states the byte that is at `address`."""
        return Vaddr(address - self.load_bias)

    def address(self, vaddr: int) -> Address:
        """Return where the byte stated at `vaddr` is."""
        return Address(vaddr + self.load_bias)

    def code(self, address: int, size: int) -> bytes | None:
        """Return the code bytes at `address`, from the file."""
        found = self.image.loaded(self.vaddr(address), size)
        return None if found is None else bytes(found)

    def code_near(self, address: int, reach: int) -> tuple[int, bytes]:
        """Return the code from `reach` before to `reach` behind `address`, and where it begins.

        It may be less: where the segment begins or ends, or nothing.
        """
        vaddr = self.vaddr(address)
        for low, high in self.image.executable:
            if low <= vaddr <= high:
                first = max(low, vaddr - reach)
                code = self.image.loaded(first)
                return self.address(first), bytes(code[: vaddr + reach - first]) if code else b""
        return address, b""

    def follows_call(self, address: int) -> bool:
        """Whether the instruction before `address` is a call, so that it can be a return address."""
        size = longest_call(self.image.machine)
        before = self.code(address - size, size) if size else None
        return before is not None and ends_in_call(self.image.machine, before)

    def call_target(self, address: int) -> int | None:
        """Return where the call before `address` leads, if the code says so."""
        size = longest_call(self.image.machine)
        before = self.code(address - size, size) if size else None
        return None if before is None else call_target(self.image.machine, before, address)

    def is_entered_at(self, start: int, address: int) -> bool:
        """Whether a function that begins at `start` may reach to `address`."""
        between = self.code(start, address - start) if 0 <= address - start < _LONGEST_LEAF else None
        return between is not None and may_share_function(self.image.machine, between)

    def is_stub(self, address: int) -> bool:
        """Whether a linkage stub is at `address`, which leads to another function."""
        return is_stub(self.image.machine, self.code(address, _STUB) or b"")

    @cached_property
    def sframe(self) -> SFrameTables:
        """SFrame tables, usually one; none when the module has none or they are damaged."""
        found = self.image.sframe()
        if found is None:
            return SFrameTables()
        machine = (self.image.machine, self.image.byteorder)
        old = bytes(found[0][2:3]) == b"\1"  # V1 comes from an ld whose PLT rows are known by their section
        sections = {s.name: (s.vaddr, s.vaddr + s.size) for s in self.image.sections} if old else None
        try:
            tables = read_tables(*found, machine=machine, executable=self.image.executable, sections=sections)
        except FormatError as damage:
            self.lose(damage)
            return SFrameTables()
        for table in tables:
            for text in table.problems:
                self._note(f"{SECTION}: {text}")
        return tables

    @cached_property
    def eh_frame(self) -> EhFrame | None:
        """CFI, through `.eh_frame_hdr`; where that is missing or damaged, by the section."""
        try:
            found = self._by_header()
        except FormatError as damage:
            self.lose(damage)
            found = None
        section = self.image.section(".eh_frame")
        if found is None and section is not None:
            found = EhFrame(self.image.contents(section), section.vaddr, self.image.byteorder)
        return found

    @cached_property
    def debug_frame(self) -> EhFrame | None:
        """CFI for debuggers: all that Go has, and what some libraries carry beside the other."""
        try:
            found = section_bytes(self.image, "debug_frame")
        except FormatError as damage:
            self.lose(damage)
            return None
        return None if found is None else EhFrame(*found, self.image.byteorder, debug=True)

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

    def lose(self, damage: FormatError) -> None:
        """Note, once, that a table or a function of this module is damaged."""
        self._note(str(damage))

    def _note(self, what: str) -> None:
        if what not in self._problems:
            self._problems.append(what)

    @property
    def problems(self) -> list[str]:
        """What was lost so far, and why; each begins with the path."""
        damage = self.image.section_damage
        return [f"{self.path}: {what}" for what in (*self._problems, *([damage] if damage else ()))]
