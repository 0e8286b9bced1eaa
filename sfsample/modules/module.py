"""Describes a module: one ELF object as it is mapped in a process.

This is the only file that computes `address == vaddr + load_bias`.  What does not depend on the load bias is
in `UnwindTables`, which all modules of the same file share.
"""

from collections.abc import Iterator

from sfsample.core.memory import Address, Vaddr
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code import calls
from sfsample.formats.sframe import SFrameTables
from sfsample.modules.unwind_tables import UnwindTables

_MAX_LEAF_BYTES = 4096  # of a leaf function
_STUB_BYTES = 16  # of a PLT stub, at most
_MAX_CACHED_FUNCTIONS = 1000  # functions whose calls are known


class Module:
    """`image`, mapped with `load_bias`; `path` is as the target sees it.  `tables`: those of the image.

    `is_closed`: the file was closed; of the image only the headers are left.
    """

    def __init__(
        self, image: ElfImage, load_bias: int, path: str, tables: UnwindTables | None = None
    ) -> None:
        self.image = image
        self.load_bias = load_bias
        self.path = path
        self.tables = tables or UnwindTables(image)
        self._calls: dict[int, tuple[int, ...]] = {}
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<Module {self.path} at {self.load_bias:#x}>"

    @property
    def build_id(self) -> str | None:
        """The GNU build-id in hexadecimal."""
        return self.image.build_id

    def vaddr(self, address: int) -> Vaddr:
        """Return the vaddr, as the ELF file states it, of a run-time address."""
        return Vaddr(address - self.load_bias)

    def address(self, vaddr: int) -> Address:
        """Return the run-time address of a vaddr."""
        return Address(vaddr + self.load_bias)

    def code(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes of code at `address`, from the file; None where the file has fewer."""
        code = self.image.loaded(self.vaddr(address), size)
        return None if code is None else bytes(code)

    def code_near(self, address: int, distance: int) -> tuple[int, bytes]:
        """Return the code from `distance` bytes before `address` to as many after it, and where it begins.

        It is shorter where the segment begins or ends, and empty where `address` is in no code of the file.
        """
        vaddr = self.vaddr(address)
        for low, high in self.image.executable:
            if low <= vaddr <= high:
                first = max(low, vaddr - distance)
                code = self.image.loaded(first)
                return self.address(first), bytes(code[: vaddr + distance - first]) if code else b""
        return address, b""

    def follows_call(self, address: int) -> bool:
        """Whether the instruction before `address` is a call, so that `address` can be a return address."""
        before = self._code_of_call(address)
        return before is not None and calls.ends_in_call(self.image.machine, before)

    def call_target(self, address: int) -> int | None:
        """Return the target of the call before `address`; None if the code does not state it."""
        before = self._code_of_call(address)
        return None if before is None else calls.call_target(self.image.machine, before, address)

    def _code_of_call(self, return_address: int) -> bytes | None:
        size = calls.longest_call(self.image.machine)
        return self.code(return_address - size, size) if size else None

    def calls_of(self, start: int) -> tuple[int, ...]:
        """Return the return addresses of all calls in this module to the function at `start`.

        Empty if the dynamic symbols export the function, because other modules can call it then.
        """
        if start not in self._calls:
            if len(self._calls) >= _MAX_CACHED_FUNCTIONS:
                self._calls.clear()
            exported = Dynamic(self.image).defines(self.vaddr(start))
            self._calls[start] = () if exported else tuple(self._calls_in_code(start))
        return self._calls[start]

    def _calls_in_code(self, start: int) -> Iterator[int]:
        for low, high in self.image.executable:
            code = bytes((self.image.loaded(low) or b"")[: high - low])
            yield from calls.calls_of(self.image.machine, code, self.address(low), start)

    def is_entered_at(self, start: int, address: int) -> bool:
        """Whether a function that begins at `start` may extend to `address`."""
        between = self.code(start, address - start) if 0 <= address - start < _MAX_LEAF_BYTES else None
        return between is not None and calls.may_share_function(self.image.machine, between)

    def stub_slot(self, address: int) -> int | None:
        """Return the address of the GOT slot through which the PLT stub at `address` jumps; None: no stub."""
        return calls.stub_slot(self.image.machine, self.code(address, _STUB_BYTES) or b"", address)

    def function_start(self, address: int) -> int | None:
        """Return where the function at `address` begins; None if neither `.eh_frame` nor SFrame has it."""
        start = self.tables.function_start(self.vaddr(address))
        return None if start is None else self.address(start)

    @property
    def sframe(self) -> SFrameTables:
        """The SFrame tables; empty when the module has none or they are damaged."""
        return self.tables.sframe

    @property
    def eh_frame(self) -> EhFrame | None:
        """The CFI of `.eh_frame`, for exceptions."""
        return self.tables.eh_frame

    @property
    def debug_frame(self) -> EhFrame | None:
        """The CFI of `.debug_frame`, for debuggers."""
        return self.tables.debug_frame

    def close_file(self) -> None:
        """Close the file of an unmapped module.  Its addresses cannot be symbolized any more."""
        self.image = self.image.headers()
        self.tables = UnwindTables(self.image)
        self._calls.clear()
        self.is_closed = True

    def note_damage(self, damage: FormatError) -> None:
        """Add, once, to the problems that a table or a function of this module is damaged."""
        self.tables.note_problem(str(damage))

    @property
    def problems(self) -> list[str]:
        """What could not be used so far, and why; each text begins with the path."""
        return [f"{self.path}: {problem}" for problem in (*self.tables.problems, *self.image.problems)]
