"""Assembles core files from notes and segments, in either byte order, or from the snapshot of a thread."""

from collections.abc import Iterable, Iterator
from struct import pack
from typing import NamedTuple

from sfsample.core.arch_types import NT_PRSTATUS
from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.modules.mapping import Mapping
from sfsample.process.registers import NT_ARM_PAC_MASK, layout_of

ET_CORE, PT_LOAD, PT_NOTE = 4, 1, 4
ORDER = {"little": "<", "big": ">"}


class Load(NamedTuple):
    """A PT_LOAD segment of `memsz` bytes (None: those of `data`), of which `data` was dumped."""

    vaddr: int
    data: bytes = b""
    flags: int = 4
    memsz: int | None = None


def note(kind: int, desc: bytes, owner: bytes = b"CORE", order: str = "little") -> bytes:
    name = owner + b"\0"
    head = pack(f"{ORDER[order]}3I", len(name), len(desc), kind)
    return head + name + bytes(-len(name) % 4) + desc + bytes(-len(desc) % 4)


def prstatus(tid: int, registers: bytes, signal: int = 0, order: str = "little") -> bytes:
    desc = pack(f"{ORDER[order]}12xH18xI76x", signal, tid) + registers + bytes(8)
    return note(1, desc, order=order)


def prpsinfo(name: bytes, arguments: bytes, pid: int = 0) -> bytes:
    return note(3, pack("<24xI12x", pid) + name.ljust(16, b"\0") + arguments.ljust(80, b"\0"))


def auxv(order: str = "little", **entries: int) -> bytes:
    numbers = {"phdr": 3, "entry": 9, "vdso": 33}
    return note(
        6,
        b"".join(pack(f"{ORDER[order]}QQ", numbers[k], v) for k, v in entries.items()) + bytes(16),
        order=order,
    )


def files(*entries: tuple[int, int, int, str], order: str = "little") -> bytes:
    """Return NT_FILE with entries (start, end, offset in pages, path)."""
    o = ORDER[order]
    head = pack(f"{o}QQ", len(entries), 4096) + b"".join(pack(f"{o}3Q", *entry[:3]) for entry in entries)
    return note(0x46494C45, head + b"".join(entry[3].encode() + b"\0" for entry in entries), order=order)


def core(notes: bytes, *loads: Load, machine: int = 62, order: str = "little", kind: int = ET_CORE) -> bytes:
    o = ORDER[order]
    count = 1 + len(loads)
    at = 64 + 56 * count
    headers = pack(f"{o}IIQQQQQQ", PT_NOTE, 0, at, 0, 0, len(notes), 0, 4)
    body = notes
    for load in loads:
        memsz = len(load.data) if load.memsz is None else load.memsz
        place = (at + len(body), load.vaddr, 0, len(load.data), memsz, 4096)
        headers += pack(f"{o}II6Q", PT_LOAD, load.flags, *place)
        body += load.data
    ident = b"\x7fELF" + bytes([2, 1 if order == "little" else 2, 1]) + bytes(9)
    return (
        ident
        + pack(f"{o}HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
        + headers
        + body
    )


def core_of(snapshot: ThreadSnapshot, mappings: Iterable[Mapping], *code: Load) -> bytes:
    """Return a core file with one thread: its registers, its stack, the mapped files, and `code`."""
    arch, order = snapshot.arch, snapshot.arch.byteorder
    notes = b""
    for register_set in layout_of(arch).sets:
        words = [0] * (register_set.size // 8)
        for number, index in register_set.words:
            words[index] = snapshot.registers.get(number, 0)
        raw = pack(f"{ORDER[order]}{len(words)}Q", *words)
        if register_set.note == NT_PRSTATUS:
            notes += prstatus(snapshot.tid, raw, order=order)
        else:
            notes += note(register_set.note, raw, order=order)
    if arch.ra_mask + 1 < 1 << 64:
        masks = pack(f"{ORDER[order]}2Q", *[~arch.ra_mask & (1 << 64) - 1] * 2)
        notes += note(NT_ARM_PAC_MASK, masks, b"LINUX", order)
    mapped = [m for m in mappings if m.is_file and m.executable]
    notes += files(*((m.start, m.end, m.offset // 4096, m.path) for m in mapped), order=order)
    notes += auxv(order, vdso=next((m.start for m in mappings if m.path == "[vdso]"), 0))
    loads = [
        *(Load(at, data) for at, data in _pieces(snapshot.memory)),
        *code,
    ]
    return core(notes, *loads, machine=arch.machine, order=order)


def _pieces(memory: Memory) -> Iterator[tuple[int, bytes]]:
    if isinstance(memory, BytesMemory):
        yield memory.base, bytes(memory.data)
    elif isinstance(memory, PiecewiseMemory):
        for piece in memory.pieces:
            yield from _pieces(piece)
