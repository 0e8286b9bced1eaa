"""A code object that was dropped before it was read has the texts that were copied in the pause."""

import struct

import pytest

from sfsample.core.memory import BytesMemory
from sfsample.runtimes.cpython.code_objects import CodeObjects, has_references
from sfsample.runtimes.cpython.layout import Layout, layout_of
from tests.runtimes.cpython.test_layout import table

LAYOUTS = [layout_of(0x030B02F0), layout_of(0x030C01F0),
           layout_of(0x030E00F0, table(14, 0x030E00F0, first_line=68))]  # fmt: skip

BASE, CODE, TYPE, QUALNAME, FILENAME, LINES = (
    0x10000 + at for at in (0, 0x100, 0x1000, 0x2000, 0x3000, 0x4000)
)
SIZE = 0x5000


def put(memory: bytearray, address: int, data: bytes) -> None:
    memory[address - BASE : address - BASE + len(data)] = data


def text(layout: Layout, characters: bytes) -> bytes:
    data = bytearray(layout.ascii_data) + characters
    struct.pack_into("<Q", data, layout.string_length, len(characters))
    struct.pack_into("<I", data, layout.string_state, (1 | 1 << 3 | 1 << 4) << layout.kind_bit)
    return bytes(data)


def code_object(layout: Layout) -> bytearray:
    memory = bytearray(SIZE)
    for at, value in [(CODE + layout.type, TYPE), (CODE + layout.code_size, 10),
                      (CODE + layout.first_line, 7),
                      (CODE + layout.qualname, QUALNAME), (CODE + layout.filename, FILENAME),
                      (CODE + layout.linetable, LINES), (TYPE + layout.type_name, TYPE + 0x800)]:  # fmt: skip
        put(memory, at, struct.pack("<I" if at == CODE + layout.first_line else "<Q", value))
    put(memory, TYPE + 0x800, b"code\0")
    put(memory, QUALNAME, text(layout, b"<module>"))
    put(memory, FILENAME, text(layout, b"/lib/enum.py"))
    return memory


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
def test_dropped_code_object_has_the_texts_of_the_pause(layout):
    paused = code_object(layout)
    now = bytearray(paused)
    put(now, CODE + layout.qualname, struct.pack("<QQ", 1, 2))
    put(now, QUALNAME, bytes(0x1000))
    codes = CodeObjects(layout, lambda spans: [BytesMemory(BASE, bytes(now)).read(*span) for span in spans])
    assert codes.look_up([CODE]) == [None]
    [found] = codes.look_up([CODE], BytesMemory(BASE, bytes(paused)))
    assert (found.qualname, found.filename, found.first_line, found.line(3)) == (
        "<module>", "/lib/enum.py", 7, None)  # fmt: skip
    assert codes.look_up([CODE]) == [None]  # it is not kept
    put(paused, CODE + layout.type, struct.pack("<Q", TYPE + 8))
    assert codes.look_up([CODE], BytesMemory(BASE, bytes(paused))) == [None]  # it is none


@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
def test_header_that_a_freed_code_object_has_kept_does_not_vouch_for_texts_of_now(layout):
    paused = code_object(layout)
    put(paused, CODE, struct.pack("<Q", 1))  # its reference count
    freed = bytearray(paused)
    put(freed, CODE, struct.pack("<Q", 0x7F0012345670))  # the next free place
    put(freed, FILENAME, text(layout, b"/lib/json.py"))
    codes = CodeObjects(layout, lambda spans: [BytesMemory(BASE, bytes(freed)).read(*span) for span in spans])
    assert codes.look_up([CODE]) == [None]
    [found] = codes.look_up([CODE], BytesMemory(BASE, bytes(paused)))
    assert (found.qualname, found.filename) == ("<module>", "/lib/enum.py")


@pytest.mark.parametrize(("first_line", "name"), [(1, "<module>"), (0, "")], ids=["module", "interpreter's"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["3.11", "3.12", "3.14"])
def test_only_code_without_a_line_whose_file_is_its_name_is_the_interpreters_own(layout, first_line, name):
    memory = code_object(layout)  # compile(source, "<module>", "exec"): since 3.13 both are one text
    put(memory, CODE, struct.pack("<Q", 1))
    put(memory, CODE + layout.first_line, struct.pack("<I", first_line))
    put(memory, CODE + layout.filename, struct.pack("<Q", QUALNAME))
    put(memory, LINES + layout.bytes_size, struct.pack("<Q", 1))
    read = BytesMemory(BASE, bytes(memory)).read
    codes = CodeObjects(layout, lambda spans: [read(*span) for span in spans])
    [found] = codes.look_up([CODE])
    assert (found.qualname, found.filename, found.first_line) == (name, name, first_line)


@pytest.mark.parametrize(("layout", "needed"), [(LAYOUTS[0], 16), (LAYOUTS[1], 1)], ids=["3.11", "3.12"])
def test_address_is_trusted_where_it_had_the_same_code_often_enough(layout, needed):
    memory = code_object(layout)
    put(memory, CODE, struct.pack("<Q", 1))
    put(memory, LINES + layout.bytes_size, struct.pack("<Q", 1))

    def look_up(paused: bytes) -> list[str | None]:
        return [code and code.qualname for code in codes.look_up([CODE], BytesMemory(BASE, paused))]

    codes = CodeObjects(
        layout, lambda spans: [BytesMemory(BASE, bytes(memory)).read(*span) for span in spans]
    )
    for _ in range(needed):
        assert CODE not in codes.trusted
        assert look_up(b"") == [None]  # nothing proves that it was there in the pause
        assert look_up(bytes(memory)) == ["<module>"]
    assert CODE in codes.trusted
    assert look_up(b"") == ["<module>"]
    put(memory, CODE + layout.qualname, struct.pack("<Q", FILENAME))
    assert look_up(b"") == [None]
    for _ in range(needed + 1):
        assert look_up(bytes(memory)) == ["/lib/enum.py"]
    assert CODE not in codes.trusted  # it has had several


@pytest.mark.parametrize(
    ("words", "lives"),
    [([1], True), ([0xFFFFFFFF], True), ([4 << 48 | 3 << 30], True), ([0], False), ([0x7F0012345670], False),
     ([7, 1 << 32, 0], True), ([7, 0, 4], True), ([7, 0, 3], False), ([0x7F0012345670, 0, 0], False)],
    ids=["once", "immortal", "static", "none", "freed", "own", "others", "merged", "freed, no GIL"],
)  # fmt: skip
def test_count_of_references_tells_whether_an_object_lives(words, lives):
    assert has_references(struct.pack(f"<{len(words)}Q", *words)) is lives
