"""Layouts of the versions that are known; others are refused, as guessed offsets would show wrong frames."""

import struct

import pytest

from sfsample.errors import BadInput
from sfsample.runtimes.cpython import layout as layouts
from sfsample.runtimes.cpython.layout import COOKIE, layout_of


def table(minor: int, version: int, *, free_threaded: bool = False, **changes: int) -> bytes:
    """Return the table of a release: sensible structures, interpreters behind it, other words from 100 on."""
    words = [96 + 8 * at for at in range(layouts._TABLE_WORDS[minor])]
    fields = {"string_length": 16, "string_state": 32, "interpreters": 24 + 8 * len(words) + 48,
              "code_size": 16, "type": 8, "previous": 8, "executable": 0, "instruction": 56, "owner": 74,
              "frame_bytes": 80, "thread_frame": 72, "thread_base": 80, "chunk": 232, "filename": 112,
              "qualname": 128, "linetable": 136}  # fmt: skip
    for field, value in (fields | changes).items():
        index = layouts._STATED[field][minor - 13]
        if index is not None:
            words[index] = value
    return struct.pack(f"<8sQQ{len(words)}Q", COOKIE, version, free_threaded, *words)


def test_tables_have_the_sizes_that_were_measured():
    assert [len(table(minor, 0)) for minor in (13, 14, 15)] == [584, 760, 888]


@pytest.mark.parametrize(("minor", "sentinels"), [(13, (3,)), (14, (3, 4)), (15, (3, 4))])
def test_stated_offsets_are_used(minor, sentinels):
    version = 0x03000000 | minor << 16 | 0x02F0
    found = layout_of(version, table(minor, version, chunk=232, ascii_data=40))
    assert (found.minor, found.interpreters, found.sentinel_owners) == (
        minor,
        len(table(minor, 0)) + 48,
        sentinels,
    )
    assert (found.chunk, found.thread_bytes) == (232, 256)
    assert (found.ascii_data, found.other_data, found.kind_bit) == (40, 56, 2)


@pytest.mark.parametrize(("minor", "bit"), [(13, 2), (14, 8), (15, 8)])
def test_without_a_gil_strings_have_their_kind_elsewhere(minor, bit):
    version = 0x03000000 | minor << 16 | 0xF0
    found = layout_of(version, table(minor, version, free_threaded=True))
    assert (found.free_threaded, found.kind_bit) == (True, bit)


def test_old_versions_have_fixed_offsets():
    assert layout_of(0x030B02F0).sentinel_owners == ()
    assert layout_of(0x030C01F0).cframe_frame == 0


@pytest.mark.parametrize(
    ("version", "data", "why"),
    [
        (0x030A00F0, b"", "Python 3.10.0 is not known; 3.11 to 3.15 are"),
        (0x031000F0, b"", "Python 3.16.0 is not known"),
        (0x02070DF0, b"", "Python 2.7.13 is not known"),
        (0x030F00B4, table(15, 0x030F00B4), "Python 3.15.0 is a pre-release"),
        (0x030D00F0, b"", "Python 3.13.0: its table of offsets is missing"),
        (0x030D00F0, table(13, 0)[:-1], "is missing"),
        (0x030D00F0, table(13, 0, interpreters=640), "does not fit the release"),
        (0x030E00F0, table(13, 0), "is missing"),
        (0x030E00F0, table(14, 0, thread_next=1 << 40), "is damaged"),
        (0x030E00F0, table(14, 0, owner=80), "is damaged"),
        (0x030E00F0, table(14, 0, frame_bytes=84), "is damaged"),
        (0x030E00F0, table(14, 0, frame_bytes=1 << 16), "is damaged"),
        (0x030E00F0, table(14, 0, chunk=40), "is damaged"),
        (0x030E00F0, table(14, 0, linetable=0), "is damaged"),
        (0x030E00F0, table(14, 0, linetable=8), "is damaged"),
        (0x030E00F0, table(14, 0, linetable=(1 << 64) - 1), "is damaged"),
        (0x030E00F0, table(14, 0, qualname=4000), "is damaged"),
        (0x030E00F0, table(14, 0, string_length=25), "is damaged"),
    ],
)
def test_other_versions_are_refused(version, data, why):
    with pytest.raises(BadInput, match=why):
        layout_of(version, data)
