"""Describes a module, an ELF object in a process.  Only this file converts addresses to vaddrs and back."""

from sfsample.core.memory import Address, Vaddr
from sfsample.errors import FormatError
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code import calls
from sfsample.modules.unwind_tables import UnwindTables

_STUB_BYTES = 16  # bytes of the longest PLT stub
_MAX_CACHED_FUNCTIONS = 1000  # functions whose callers are cached


class Module:
    """An image that is mapped in a process.  `path` is the path as the target sees it."""

    def __init__(self, image: ElfImage, bias: int, path: str, tables: UnwindTables | None = None) -> None:
        self.image, self.load_bias, self.path = image, bias, path
        self.tables = tables or UnwindTables(image)
        self._calls: dict[int, tuple[int, ...]] = {}
        self.is_closed = False  # True: the image has only headers

    def __repr__(self) -> str:
        return f"<Module {self.path} at {self.load_bias:#x}>"

    @property
    def build_id(self) -> str | None:
        """The GNU build-id in hexadecimal."""
        return self.image.build_id

    def vaddr(self, address: int) -> Vaddr:
        """Return the vaddr of a run-time address."""
        return Vaddr(address - self.load_bias)

    def address(self, vaddr: int) -> Address:
        """Return the run-time address of a vaddr."""
        return Address(vaddr + self.load_bias)

    def code(self, address: int, size: int) -> bytes | None:
        """Return `size` bytes of code at `address`, from the file; None if the file has fewer bytes there."""
        code = self.image.loaded(self.vaddr(address), size)
        return None if code is None else bytes(code)

    def code_near(self, address: int, distance: int) -> tuple[int, bytes]:
        """Return (first address, bytes) of the segment's code within `distance` of `address`; or no bytes."""
        vaddr = self.vaddr(address)
        for low, high in self.image.executable:
            if low <= vaddr <= high:
                first = max(low, vaddr - distance)
                code = self.image.loaded(first)
                return self.address(first), bytes(code[: vaddr + distance - first]) if code else b""
        return address, b""

    def follows_call(self, address: int) -> bool:
        """Return True if the instruction before `address` is a call: `address` can be a return address."""
        before = self._code_of_call(address)
        return before is not None and calls.ends_in_call(self.image.machine, before)

    def call_target(self, address: int) -> int | None:
        """Return the target of the call before `address`; None if the code states no target."""
        before = self._code_of_call(address)
        return None if before is None else calls.call_target(self.image.machine, before, address)

    def _code_of_call(self, return_address: int) -> bytes | None:
        size = calls.longest_call(self.image.machine)
        return self.code(return_address - size, size) if size else None

    def calls_of(self, start: int) -> tuple[int, ...]:
        """Return the return addresses of calls to the function at `start`; empty for an exported function."""
        if start not in self._calls:
            if len(self._calls) >= _MAX_CACHED_FUNCTIONS:
                self._calls.clear()
            exported = Dynamic(self.image).defines(self.vaddr(start))
            returns: list[int] = []
            for low, high in () if exported else self.image.executable:
                code = bytes((self.image.loaded(low) or b"")[: high - low])
                returns += calls.calls_of(self.image.machine, code, self.address(low), start)
            self._calls[start] = tuple(returns)
        return self._calls[start]

    def stub_slot(self, address: int) -> int | None:
        """Return the address of the GOT slot through which the PLT stub at `address` jumps; None: no stub."""
        return calls.stub_slot(self.image.machine, self.code(address, _STUB_BYTES) or b"", address)

    def function_start(self, address: int) -> int | None:
        """Return the start of the function at `address`; None if neither `.eh_frame` nor SFrame has it."""
        start = self.tables.function_start(self.vaddr(address))
        return None if start is None else self.address(start)

    def close_file(self) -> None:
        """Close the file of an unmapped module.  From then on, addresses of the module get no names."""
        self.image = self.image.headers()
        self.tables = UnwindTables(self.image)
        self._calls.clear()
        self.is_closed = True

    def note_damage(self, damage: FormatError) -> None:
        """Add the damage of a table or of a function to the problems, once."""
        self.tables.note_problem(str(damage))

    @property
    def problems(self) -> list[str]:
        """Sentences about parts of the file that sfsample cannot use; each sentence begins with the path."""
        return [f"{self.path}: {problem}" for problem in (*self.tables.problems, *self.image.problems)]
