"""Assembles 64-bit ELF files: an ELF header, program headers, contents, section headers.

data = elf([Load(0x1000, code, flags=R | X)], [Bytes(".sframe", 0x2000, b"...")])
"""

from struct import pack
from typing import NamedTuple

X, W, R = 1, 2, 4
PT_LOAD, PT_NOTE, PT_GNU_EH_FRAME, PT_GNU_SFRAME = 1, 4, 0x6474E550, 0x6474E554
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS, SHT_DYNSYM = 1, 2, 3, 8, 11
EHDR, PHDR, SHDR = 64, 56, 64


class Load(NamedTuple):
    """A segment.  `offset` None: the contents are appended to the file, 16-byte aligned."""

    vaddr: int
    data: bytes = b""
    flags: int = R | X
    type: int = PT_LOAD
    offset: int | None = None
    filesz: int | None = None
    memsz: int | None = None


class Bytes(NamedTuple):
    """A section.  `offset` None: the contents are appended to the file."""

    name: str
    vaddr: int
    data: bytes = b""
    type: int = SHT_PROGBITS
    flags: int = 2
    link: int = 0
    offset: int | None = None
    size: int | None = None


def note(desc: bytes, kind: int = 3, name: bytes = b"GNU\0", byteorder: str = "little") -> bytes:
    """Return an ELF note (gABI, "Note Section")."""
    fields = pack(("<" if byteorder == "little" else ">") + "III", len(name), len(desc), kind)
    return fields + name + bytes(-len(name) % 4) + desc + bytes(-len(desc) % 4)


def elf(
    segments: list[Load],
    sections: list[Bytes] | None = None,
    *,
    machine: int = 62,
    byteorder: str = "little",
    kind: int = 3,
    elf_class: int = 2,
    entry: int = 0,
) -> bytes:
    """Return the bytes of the file."""
    mark = "<" if byteorder == "little" else ">"
    body = bytearray()
    base = EHDR + PHDR * len(segments)

    def place(data: bytes, offset: int | None) -> int:
        if offset is None:
            body.extend(bytes(-(base + len(body)) % 16))
            offset = base + len(body)
            body.extend(data)
            return offset
        end = offset + len(data)
        body.extend(bytes(max(0, end - base - len(body))))
        body[offset - base : end - base] = data
        return offset

    headers = bytearray()
    for s in segments:
        at = place(s.data, s.offset) if s.data or s.offset is None else s.offset
        filesz = len(s.data) if s.filesz is None else s.filesz
        memsz = filesz if s.memsz is None else s.memsz
        headers += pack(mark + "IIQQQQQQ", s.type, s.flags, at, s.vaddr, s.vaddr, filesz, memsz, 16)
    table, shoff, count = b"", 0, 0
    if sections is not None:
        names = b"\0" + b"".join(s.name.encode() + b"\0" for s in sections) + b".shstrtab\0"
        records = [pack(mark + "IIQQQQIIQQ", *[0] * 10)]
        position = 1
        for s in [*sections, Bytes(".shstrtab", 0, names, SHT_STRTAB, 0)]:
            at = place(s.data, s.offset) if s.type != SHT_NOBITS else 0
            size = len(s.data) if s.size is None else s.size
            records.append(
                pack(mark + "IIQQQQIIQQ", position, s.type, s.flags, s.vaddr, at, size, s.link, 0, 1, 0)
            )
            position += len(s.name) + 1
        body.extend(bytes(-(base + len(body)) % 16))
        shoff, count, table = base + len(body), len(records), b"".join(records)
    ident = b"\x7fELF" + bytes([elf_class, 1 if byteorder == "little" else 2, 1]) + bytes(9)
    header = ident + pack(mark + "HHIQQQIHHHHHH", kind, machine, 1, entry, EHDR, shoff, 0, EHDR, PHDR,
                          len(segments), SHDR, count, max(0, count - 1))  # fmt: skip
    return bytes(header + headers + body + table)
