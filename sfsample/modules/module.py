"""A module: one ELF object as it is mapped in a process.

Law: `address == vaddr + load_bias` is written here and nowhere else.  What does not depend on it is in
`tables`, which modules of the same file share.
"""

from collections.abc import Iterator

from sfsample.core.memory import Address, Vaddr
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code.calls import (
    call_target,
    calls_of,
    ends_in_call,
    longest_call,
    may_share_function,
    stub_slot,
)
from sfsample.formats.sframe.section import SFrameTables
from sfsample.modules.unwind_tables import UnwindTables

_LONGEST_LEAF = 4096
_STUB = 16


class Module:
    """`image` mapped with `load_bias`; `path` as the target sees it.  `tables`: those of the image.

    `let_go`: of the image, only the headers are left.
    """

    def __init__(
        self, image: ElfImage, load_bias: int, path: str, tables: UnwindTables | None = None
    ) -> None:
        self.image = image
        self.load_bias = load_bias
        self.path = path
        self.tables = tables or UnwindTables(image)
        self._calls: dict[int, tuple[int, ...]] = {}
        self.let_go = False

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

    def calls_of(self, start: int) -> tuple[int, ...]:
        """Return the addresses behind all calls of a function of this module; none if others can see it."""
        if start not in self._calls:
            visible = Dynamic(self.image).defines(self.vaddr(start))
            self._calls[start] = () if visible else tuple(self._calls_in_code(start))
        return self._calls[start]

    def _calls_in_code(self, start: int) -> Iterator[int]:
        for low, high in self.image.executable:
            code = bytes((self.image.loaded(low) or b"")[: high - low])
            yield from calls_of(self.image.machine, code, self.address(low), start)

    def is_entered_at(self, start: int, address: int) -> bool:
        """Whether a function that begins at `start` may reach to `address`."""
        between = self.code(start, address - start) if 0 <= address - start < _LONGEST_LEAF else None
        return between is not None and may_share_function(self.image.machine, between)

    def is_stub(self, address: int) -> bool:
        """Whether a linkage stub is at `address`, which leads to another function."""
        return self.stub_slot(address) is not None

    def stub_slot(self, address: int) -> int | None:
        """Return where the address stands to which the linkage stub at `address` jumps; None: it is none."""
        return stub_slot(self.image.machine, self.code(address, _STUB) or b"", address)

    def function_start(self, address: int) -> int | None:
        """Return where the function at `address` begins, if `.eh_frame` or SFrame says so."""
        start = self.tables.function_start(self.vaddr(address))
        return None if start is None else self.address(start)

    @property
    def sframe(self) -> SFrameTables:
        """SFrame tables; none when the module has none or they are damaged."""
        return self.tables.sframe

    @property
    def eh_frame(self) -> EhFrame | None:
        """CFI for exceptions."""
        return self.tables.eh_frame

    @property
    def debug_frame(self) -> EhFrame | None:
        """CFI for debuggers."""
        return self.tables.debug_frame

    def forget(self) -> None:
        """Close the file, which nobody maps any more; what lies in it will have no names."""
        self.image = self.image.headers()
        self.tables = UnwindTables(self.image)
        self._calls.clear()
        self.let_go = True

    def lose(self, damage: FormatError) -> None:
        """Note, once, that a table or a function of this module is damaged."""
        self.tables.note(str(damage))

    @property
    def problems(self) -> list[str]:
        """What was lost so far, and why; each begins with the path."""
        damage = self.image.section_damage
        return [f"{self.path}: {what}" for what in (*self.tables.problems, *([damage] if damage else ()))]
