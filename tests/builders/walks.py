"""Builds stacks to walk: an ELF file with code of nops and calls, rows stated by a test, words on a stack."""

from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Found, Frame
from sfsample.core.walk_limits import MAX_FRAMES
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.unwinder import Unwinder
from tests.builders.elf_builder import Bytes, Load, elf

BIAS, TEXT, SIZE = 0x40_0000, 0x1000, 0x1000
CODE = BIAS + TEXT  # every pc below is CODE + something; a call stands before CODE + 0x10, 0x20, ...
JIT = 0x9_0000  # anonymous executable memory
STACK = 0x7F00_0000
RBX, FP, SP, PC = 3, 6, 7, 16
TRAMPOLINE = CODE + 0x800
SIGRETURN = bytes.fromhex("48c7c00f0000000f05")

RA_SLOT = Rule(CFA, -8, deref=True)
LEAF = UnwindRow(Rule(SP, 8, deref=False), RA_SLOT, kept=(RBX, FP))
OUTERMOST = UnwindRow(Rule(SP, 8, deref=False), None)


def text() -> bytes:
    code = bytearray(b"\x90" * SIZE)
    for at in range(0x10, 0x800, 0x10):
        code[at - 2 : at] = b"\xff\xd0"  # call *%rax
    code[0x800 : 0x800 + len(SIGRETURN)] = SIGRETURN
    return bytes(code)


def module_map(
    *segments: Load,
    sections: list[Bytes] | None = None,
    jit: bool = False,
    code: bytes | None = None,
    generated: bytes = b"",
) -> ModuleMap:
    """Return a map of one module; `generated` is the readable code of an anonymous mapping at JIT."""
    image = ElfImage(elf([Load(TEXT, code or text(), offset=0x1000), *segments], sections), "invented")
    maps = [Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False)]
    if jit or generated:
        maps.insert(0, Mapping(JIT, JIT + SIZE, True, True, 0, "00:00", 0, "", False))
    maps.append(Mapping(STACK, STACK + 0x10000, True, False, 0, "00:00", 0, "[stack]", False))
    memory = BytesMemory(JIT, generated.ljust(SIZE, b"\xcc")) if generated else BytesMemory(0, b"")
    return ModuleMap(lambda: tuple(maps), lambda _: image, memory.read)


class RowsByPc:
    """A stepper with the given rows, by pc; `asked` keeps the frames that it was asked about."""

    def __init__(self, rows: dict[int, UnwindRow], found: Found = Found.SFRAME) -> None:
        self.rows = rows
        self.found = found
        self.asked: list[Frame] = []

    def row_at(self, frame, module, arch):  # noqa: ARG002 - the protocol
        self.asked.append(frame)
        return self.rows.get(frame.pc)


def words(*values: int, base: int = STACK) -> BytesMemory:
    return BytesMemory(base, b"".join(v.to_bytes(8, "little") for v in values))


def snapshot(
    memory, pc: int = CODE, sp: int = STACK, *, bounded: bool = False, **registers
) -> ThreadSnapshot:
    named = {{"rbx": RBX, "rbp": FP}[name]: value for name, value in registers.items()}
    return ThreadSnapshot(1, {PC: pc, SP: sp, **named}, memory, bounded, 0, eintr=False)


def walk(memory, *steppers, modules: ModuleMap | None = None, max_frames: int = MAX_FRAMES, **thread):
    unwinder = Unwinder(modules or module_map(), steppers=steppers, max_frames=max_frames)
    return unwinder.walk(snapshot(memory, **thread))


def pcs(stack) -> list[int]:
    return [frame.pc - CODE for frame in stack.frames]
