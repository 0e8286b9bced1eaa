"""Finds `.gopclntab`, `runtime.moduledata` and `runtime.waitReasonStrings` in an ELF file.

The table is a section.  If a linker has merged the table into `.data.rel.ro` (PIE with cgo up to Go 1.25), or
section headers are missing, sfsample searches for the magic number of the table's header.
moduledata begins with the vaddr of the table, so sfsample searches writable data for this vaddr.  In a PIE or
library for AArch64, the file has zeros where the loader writes addresses; `.rela.dyn` has the addresses.

A waiting goroutine has the number of a reason.  The numbers differ between versions of Go, so sfsample
reads the reasons from the array `waitReasonStrings`, whose second string is the same in all versions.

Source: Go, src/runtime: symtab.go (pcHeader, moduledata), runtime2.go (waitReasonStrings); ld/pcln.go.
"""

import re
from collections.abc import Iterator
from struct import iter_unpack, pack_into, unpack_from

from sfsample.core.arch import AARCH64
from sfsample.errors import FormatError
from sfsample.formats.elf.image import PF_W, PF_X, PT_LOAD, ElfImage
from sfsample.formats.gopclntab.table import LAYOUTS, SECTION, GoHeader, GoModuleData, GoTable

_SECTIONS = (SECTION, ".data.rel.ro.gopclntab")
_MARKS = (".go.buildinfo", ".note.go.buildid")  # sections of a file that has Go code
# magic, two zero bytes, smallest size of an instruction, size of a pointer: Go 1.18 and later
_HEADER_START = re.compile(rb"[\xf0\xf1]\xff\xff\xff\0\0[\1\2\4]\x08")
_HEADER_SIZE = 72  # bytes
_RELATIVE = 1027  # R_AARCH64_RELATIVE
_MAX_FUNCTIONS = 1 << 26
_MODULE_WORDS = 48  # words of moduledata that are read
_OLD = re.compile(r"go1\.(?:1|2[0-5])")  # versions whose word `gofunc` has a fixed index
_BUILD_INFO = re.compile(rb"\xff Go buildinf:")
_VERSION = re.compile(rb"(?:go|devel go)[0-9][ -~]{0,60}")
_MAX_VERSION_DISTANCE = 128  # bytes from the mark of the build information to the end of the version
_SECOND_REASON = b"GC assist marking"
# numbers of "sleep" and "preempted"; a debugger has arrays of other versions, too
_NUMBERS = {19: (19, 25), 21: (19, 28), 24: (19, 29), 25: (20, 30), 26: (14, 30), 27: (14, 30)}
_STRING_SIZE = 16  # bytes of a string header: address, length
_MAX_REASONS, _MAX_REASON_SIZE = 128, 64


def find_table(image: ElfImage) -> GoTable | None:
    """Return the table of a file; None: no Go code.  Raises FormatError if the table is damaged."""
    damage: FormatError | None = None
    for vaddr, data in _candidates(image):
        try:
            header = _header(data, vaddr)
            version = _version(image)
            is_old = header.text > 0 or _OLD.match(version) is not None
            module = _module_data(image, header, len(data), is_old=is_old)
            return GoTable(image, data, header, module, version)
        except FormatError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return None


def _candidates(image: ElfImage) -> Iterator[tuple[int, memoryview]]:
    """Yield the vaddr and the bytes of each possible table."""
    for name in _SECTIONS:
        section = image.section(name)
        if section is not None:
            yield section.vaddr, image.contents(section)
            return
    if image.sections and not any(image.section(name) for name in _MARKS):
        return
    # code comes last: code is large, and rarely contains the table
    for vaddr, data in (*_segments(image, 0, PF_X), *_segments(image, PF_X, PF_X)):
        for found in _HEADER_START.finditer(data):
            if found.start() % 8 == 0:
                yield vaddr + found.start(), data[found.start() :]


def _segments(image: ElfImage, flags: int, mask: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the vaddr and the bytes of the loaded segments whose flags in `mask` are `flags`."""
    for segment in image.segments:
        if segment.type == PT_LOAD and segment.flags & mask == flags:
            yield segment.vaddr, image.data[segment.offset : segment.offset + segment.filesz]


def _writable(image: ElfImage) -> Iterator[tuple[int, memoryview]]:
    """Yield vaddr and bytes of each writable segment; the bytes have the addresses that the loader writes."""
    section = image.section(".rela.dyn") if image.machine == AARCH64.machine else None
    entries = image.contents(section) if section is not None else b""
    for vaddr, data in _segments(image, PF_W, PF_W):
        copy = bytearray(data) if entries else b""
        for place, kind, value in iter_unpack("<QQQ", entries[: len(entries) // 24 * 24]):
            if kind == _RELATIVE and vaddr <= place <= vaddr + len(copy) - 8:
                pack_into("<Q", copy, place - vaddr, value)
        yield vaddr, memoryview(copy) if copy else data


def _header(data: memoryview, vaddr: int) -> GoHeader:
    if len(data) < _HEADER_SIZE or not _HEADER_START.match(data):
        raise FormatError(SECTION, 0, "no header of Go 1.18 to 1.27")
    magic, _, quantum, _, *words = unpack_from("<IHBB8Q", data)
    functions, _, text, *offsets = words
    if sorted(offsets) != offsets or offsets[-1] + 8 * functions >= len(data) or functions > _MAX_FUNCTIONS:
        raise FormatError(SECTION, 8, "the parts do not fit into the table")
    return GoHeader(vaddr, LAYOUTS[magic], quantum, functions, text, *offsets)


def _module_data(image: ElfImage, header: GoHeader, size: int, *, is_old: bool) -> GoModuleData:
    """Return moduledata as the linker wrote it, with vaddrs.  `is_old`: up to Go 1.25."""
    for data in _possible_module_data(image, header.vaddr):
        words = unpack_from(f"<{_MODULE_WORDS}Q", data)
        parts = tuple(header.vaddr + offset for offset in (header.names, header.units, header.values))
        first_pc, end_pc, text, end_text = words[20:24]
        if (words[1], words[4], words[10]) == parts and text <= first_pc < end_pc <= end_text:
            bss = ((words[28], words[29]), (words[30], words[31]))
            return GoModuleData(text, first_pc, end_pc, _funcdata(words, header, size, is_old=is_old), bss)
    raise FormatError(SECTION, 0, "no moduledata refers to the table")


def _funcdata(words: tuple[int, ...], header: GoHeader, size: int, *, is_old: bool) -> int:
    """Return the word `gofunc`.  From Go 1.26 on, its index varies, but the word points into the table."""
    if is_old:
        return words[header.layout.funcdata_word]
    start = header.vaddr + header.table
    # smallest vaddr at or after the start of the function table; a larger vaddr is the end of a table
    return min((word for word in words[36:] if start <= word < header.vaddr + size), default=0)


def _possible_module_data(image: ElfImage, table: int) -> Iterator[memoryview]:
    """Yield bytes that may be moduledata, which begins with the vaddr of the table."""
    first = re.compile(re.escape(table.to_bytes(8, "little")))
    for vaddr, data in _writable(image):
        for found in first.finditer(data, 0, max(0, len(data) - 8 * (_MODULE_WORDS - 1))):
            if (vaddr + found.start()) % 8 == 0:
                yield data[found.start() :]


def _version(image: ElfImage) -> str:
    """Return the version of the compiler, such as "go1.24.4"; "": the file states no version."""
    for _, data in _segments(image, PF_W, PF_W):
        found = _BUILD_INFO.search(data)
        version = found and _VERSION.search(data, found.start(), found.start() + _MAX_VERSION_DISTANCE)
        if version:
            return bytes(version[0]).decode().removeprefix("devel ").split()[0]
    return ""


def find_wait_reasons(table: GoTable) -> tuple[str, ...]:
    """Return the wait reasons of the version by number; empty: the array was not found."""
    image, size = table.image, len(_SECOND_REASON).to_bytes(8, "little")
    for vaddr, data in _segments(image, 0, 0):
        for text in re.finditer(_SECOND_REASON, data):
            second = re.compile(re.escape((vaddr + text.start()).to_bytes(8, "little") + size))
            for _, array in (*_segments(image, 0, PF_W | PF_X), *_writable(image)):
                for found in second.finditer(array, _STRING_SIZE):
                    reasons = tuple(_reasons(image, array[found.start() - _STRING_SIZE :]))
                    numbers = _NUMBERS.get(table.minor or 0, _NUMBERS[21])
                    if [reasons[at : at + 1] for at in numbers] == [("sleep",), ("preempted",)]:
                        return reasons
    return ()


def _reasons(image: ElfImage, array: memoryview) -> Iterator[str]:
    for number in range(min(_MAX_REASONS, len(array) // _STRING_SIZE)):
        address, size = unpack_from("<QQ", array, number * _STRING_SIZE)
        text = image.loaded(address, size) if 0 < size <= _MAX_REASON_SIZE else None
        if text is None and number:  # reason 0 has no text
            return
        yield bytes(text or b"").decode("utf-8", "replace")
