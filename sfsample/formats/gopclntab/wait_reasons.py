"""Finds the texts of the reasons for which goroutines wait: the array `runtime.waitReasonStrings`.

A goroutine has the number of its reason, which differs between versions.  The array has the texts.  It is
found by its second text, which is the same in all versions.

Source: Go, src/runtime/runtime2.go (waitReasonStrings).
"""

import re
from struct import unpack_from

from sfsample.formats.elf.image import PF_X, PT_LOAD, ElfImage

_SECOND = b"GC assist marking"
_HEADER_SIZE = 16  # bytes of a string header: address, length
_MAX_REASONS, _MAX_TEXT_SIZE = 128, 64


def find_wait_reasons(image: ElfImage) -> tuple[str, ...]:
    """Return the texts by number; empty if the array is not found."""
    segments = [s for s in image.segments if s.type == PT_LOAD and not s.flags & PF_X]
    for segment in segments:
        data = image.data[segment.offset : segment.offset + segment.filesz]
        for text in re.finditer(_SECOND, data):
            header = (segment.vaddr + text.start()).to_bytes(8, "little") + len(_SECOND).to_bytes(8, "little")
            for other in segments:
                array = image.data[other.offset : other.offset + other.filesz]
                found = re.search(re.escape(header), array)
                if found is not None and found.start() >= _HEADER_SIZE:
                    return _texts(image, array[found.start() - _HEADER_SIZE :])
    return ()


def _texts(image: ElfImage, array: memoryview) -> tuple[str, ...]:
    texts: list[str] = []
    for number in range(min(_MAX_REASONS, len(array) // _HEADER_SIZE)):
        address, size = unpack_from("<QQ", array, number * _HEADER_SIZE)
        text = image.loaded(address, size) if 0 < size <= _MAX_TEXT_SIZE else None
        if text is None and number:
            break
        texts.append(bytes(text or b"").decode("utf-8", "replace"))
    return tuple(texts)
