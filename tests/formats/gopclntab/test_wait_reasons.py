"""Which of several arrays of strings has the reasons to wait of a version of Go.

A debugger for Go has the reasons of other versions, too, to show the goroutines of other programs.
"""

from struct import pack
from types import SimpleNamespace

import pytest

from sfsample.formats.elf.image import ElfImage
from sfsample.formats.gopclntab.find import find_wait_reasons
from tests.builders.elf_builder import Load, R, W, elf

TEXTS, ARRAYS = 0x10000, 0x20000
VERSIONS = {19: (19, 25), 21: (19, 28), 24: (19, 29), 25: (20, 30), 26: (14, 30)}  # "sleep", "preempted"


def reasons(minor: int) -> list[str]:
    texts = ["", "GC assist marking", *(f"reason {number} of {minor}" for number in range(2, 40))]
    sleep, preempted = VERSIONS[minor]
    texts[sleep], texts[preempted] = "sleep", "preempted"
    return texts


def program(*minors: int) -> ElfImage:
    """Return a file with the arrays of these versions; the linker stores equal texts once."""
    lists = [reasons(minor) for minor in minors]
    blob, places = b"", dict[str, int]()
    for text in (text for texts in lists for text in texts):
        if text not in places:
            places[text] = TEXTS + len(blob)
            blob += text.encode()
    array = b"".join(
        b"".join(pack("<QQ", places[text] if text else 0, len(text)) for text in texts) + bytes(16)
        for texts in lists
    )
    return ElfImage(elf([Load(TEXTS, blob, flags=R), Load(ARRAYS, array, flags=R | W)]), "debugger")


@pytest.mark.parametrize("minor", VERSIONS)
def test_the_reasons_are_those_of_the_programs_own_version(minor):
    image = program(*VERSIONS)
    assert find_wait_reasons(SimpleNamespace(image=image, minor=minor)) == tuple(reasons(minor))


def test_reasons_of_other_versions_are_not_used():
    assert find_wait_reasons(SimpleNamespace(image=program(19, 26), minor=24)) == ()
