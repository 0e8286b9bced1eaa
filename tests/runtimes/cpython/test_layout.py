"""Layouts of the versions that are known; others are refused, as guessed offsets would show wrong frames."""

import struct

import pytest

from sfsample.errors import BadInput
from sfsample.runtimes.cpython import layout as layouts
from sfsample.runtimes.cpython.layout import COOKIE, layout_of


def table(minor: int, version: int, *, free_threaded: bool = False, **changes: int) -> bytes:
    """Return the table of a release: sensible structures, interpreters behind it, other words from 100 on."""
    names = [(group, word) for group, words in layouts._TABLES[minor].items() for word in words.split()]
    size = 24 + 8 * len(names)
    words = {name: 96 + 8 * at for at, name in enumerate(names)}
    words |= {("string", "length"): 16, ("string", "state"): 32}
    words |= {("runtime", "interpreters_head"): size + 48, ("object", "size"): 16, ("object", "ob_type"): 8}
    words |= {("frame", "previous"): 8, ("frame", "executable"): 0, ("frame", "instr_ptr"): 56,
              ("frame", "owner"): 74, ("frame", "localsplus"): 80, ("thread", "current_frame"): 72,
              ("thread", "base_frame"): 80, ("thread", "datastack_chunk"): 232, ("code", "filename"): 112,
              ("code", "qualname"): 128, ("code", "linetable"): 136}  # fmt: skip
    words = {name: value for name, value in words.items() if name in names}
    words |= {tuple(name.split("__")): value for name, value in changes.items()}  # type: ignore[misc]
    return struct.pack(f"<8sQQ{len(names)}Q", COOKIE, version, free_threaded, *words.values())


def test_tables_have_the_sizes_that_were_measured():
    assert [len(table(minor, 0)) for minor in (13, 14, 15)] == [584, 760, 888]


@pytest.mark.parametrize(("minor", "sentinels"), [(13, (3,)), (14, (3, 4)), (15, (3, 4))])
def test_stated_offsets_are_used(minor, sentinels):
    version = 0x03000000 | minor << 16 | 0x02F0
    found = layout_of(
        version, table(minor, version, thread__datastack_chunk=232, string__asciiobject_size=40)
    )
    assert (found.minor, found.interpreters, found.sentinel_owners) == (
        minor,
        len(table(minor, 0)) + 48,
        sentinels,
    )
    assert (found.chunk, found.chunk_top, found.chunk_limit, found.thread_bytes) == (232, 240, 248, 256)
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
        (0x030D00F0, table(13, 0, runtime__interpreters_head=640), "is not that of the release"),
        (0x030E00F0, table(13, 0), "is missing"),
        (0x030E00F0, table(14, 0, thread__next=1 << 40), "is damaged"),
        (0x030E00F0, table(14, 0, frame__owner=80), "is damaged"),
        (0x030E00F0, table(14, 0, frame__localsplus=84), "is damaged"),
        (0x030E00F0, table(14, 0, frame__localsplus=1 << 16), "is damaged"),
        (0x030E00F0, table(14, 0, thread__datastack_chunk=40), "is damaged"),
        (0x030E00F0, table(14, 0, code__linetable=0), "is damaged"),
        (0x030E00F0, table(14, 0, code__linetable=8), "is damaged"),
        (0x030E00F0, table(14, 0, code__linetable=(1 << 64) - 1), "is damaged"),
        (0x030E00F0, table(14, 0, code__qualname=4000), "is damaged"),
        (0x030E00F0, table(14, 0, string__length=25), "is damaged"),
    ],
)
def test_other_versions_are_refused(version, data, why):
    with pytest.raises(BadInput, match=why):
        layout_of(version, data)
