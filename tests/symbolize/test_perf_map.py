"""What a perf map says, whose it is, and when it is read again."""

import os
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.core.filesystem import ProcessRoot, Root
from sfsample.modules.location import Location
from sfsample.symbolize import perf_map
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.perf_map import Generated, PerfMap, PerfMaps
from sfsample.symbolize.symbolizer import Symbolizer

DATA = b"1000 10 py::f:/a b.py\n2000 20 JS:*g x.js:1\n1008 8 inner\n"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (0xFFF, None),
        (0x1000, Generated("py::f:/a b.py", 0x1000, 0x10)),
        (0x1008, Generated("inner", 0x1008, 8)),
        (0x1010, None),
        (0x201F, Generated("JS:*g x.js:1", 0x2000, 0x20)),
        (0x2020, None),
        (-1, None),
        (1 << 64, None),
    ],
)
def test_find(address, expected):
    assert PerfMap(DATA).find(address) == expected


def test_what_was_written_last_is_there_now():
    old_first = PerfMap(b"1000 100 old\n1040 100 new\n1000 10 newest\n")
    assert [old_first.find(a).name for a in (0x1000, 0x1010, 0x1040, 0x10FF, 0x1100)] == [
        "newest", "old", "new", "new", "new"]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"1000", b"1000 10", b"1000 10 ", b"1000 0 f", b"zz 10 f", b"1000 -5 f", b"-1000 2000 f",
     b"ffffffffffffffff 10 f", b"1" * 5000 + b" 10 f", b"1000 1_ f", b"\xff\xfe 1 f", b"1000 10 f"],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_left_out(line):
    """The last example has no end yet: it is being written."""
    assert PerfMap(b"4000 10 good\n" + line).find(0x1000) is None
    whole = PerfMap(line + b"\n4000 10 good\n")
    assert whole.find(0x4000).name == "good"


def test_names_of_any_bytes():
    assert PerfMap(b"10 10 \xff\xfea\0b;c\r\n").find(0x10).name == "\ufffd\ufffda\0b;c"


@given(st.binary(max_size=300), st.integers(-1, 1 << 64))
def test_any_bytes_never_raise(data, address):
    found = PerfMap(data).find(address)
    assert found is None or found.start <= address < found.start + found.size


def test_it_agrees_with_a_plain_search():
    chance = random.Random(3)  # noqa: S311
    rows = [(chance.randrange(1000), chance.randrange(1, 60), f"f{n}") for n in range(200)]
    table = PerfMap("".join(f"{a:x} {s:x} {n}\n" for a, s, n in rows).encode())
    for address in range(1100):
        covering = [name for start, size, name in rows if start <= address < start + size]
        found = table.find(address)
        assert (found and found.name) == (covering[-1] if covering else None)


# -- whose it is


@pytest.fixture
def home(tmp_path):
    (tmp_path / "tmp").mkdir()
    return ProcessRoot(Root(str(tmp_path)), 7, os.geteuid())


def find(home, address=0x1000):
    return PerfMaps({1234: home}).find(1234, address)


def test_the_file_is_that_of_the_pid_inside(home, tmp_path):
    (tmp_path / "tmp" / "perf-7.map").write_bytes(DATA)
    assert find(home).name == "py::f:/a b.py"
    assert PerfMaps({}).find(1234, 0x1000) is None
    assert PerfMaps({1234: ProcessRoot(None, 7, 0)}).find(1234, 0x1000) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else_is_not_believed(home, tmp_path):
    path = tmp_path / "tmp" / "perf-7.map"
    path.write_bytes(DATA)
    os.chown(path, 1000, 1000)
    assert find(home) is None
    assert find(home._replace(uid=1000)).name == "py::f:/a b.py"
    os.chown(path, 0, 0)
    assert find(home._replace(uid=1000)).name == "py::f:/a b.py"


def test_links_and_fifos_are_not_opened(home, tmp_path):
    (tmp_path / "real").write_bytes(DATA)
    path = tmp_path / "tmp" / "perf-7.map"
    path.symlink_to(tmp_path / "real")
    assert find(home) is None
    path.unlink()
    os.mkfifo(path)
    assert find(home) is None


def test_it_is_read_again_when_an_address_is_missed_and_it_has_grown(home, tmp_path):
    path = tmp_path / "tmp" / "perf-7.map"
    maps = PerfMaps({1234: home}, clock=lambda: 0)
    assert maps.find(1234, 0x1000) is None
    assert not maps.has(1234)
    path.write_bytes(DATA)
    assert maps.find(1234, 0x1000) is not None
    assert maps.has(1234)
    assert maps.find(1234, 0x3000) is None
    with path.open("ab") as file:
        file.write(b"3000 10 late\n")
    assert maps.find(1234, 0x3000).name == "late"
    path.unlink()
    assert maps.find(1234, 0x3000).name == "late"  # what was known stays known


def test_of_a_file_that_is_too_large_the_end_is_read(home, tmp_path, monkeypatch):
    """What was written last holds where memory was used again; a line that is cut is none."""
    monkeypatch.setattr(perf_map, "_MOST_BYTES", 1 << 20)
    line = b"1000 10 f\n"
    count = (1 << 20) // len(line) + 100
    (tmp_path / "tmp" / "perf-7.map").write_bytes(b"5000 10 first\n" + line * count + b"1000 10 last\n")
    maps = PerfMaps({1234: home})

    assert maps.find(1234, 0x1000).name == "last"
    assert maps.find(1234, 0x5000) is None
    size = 14 + len(line) * count + 13
    [told] = maps.problems
    words = re.fullmatch(
        r"process 1234: /tmp/perf-7.map: the first (\d+) of (\d+) bytes were .* last 1 MiB", told
    )
    assert int(words[2]) == size
    assert (1 << 20) - len(line) <= size - int(words[1]) <= 1 << 20
    assert (int(words[1]) - 14) % len(line) == 0  # whole lines


def test_reading_it_again_takes_a_tenth_of_the_time_at_most(home, tmp_path):
    """A JIT may write all the time, and every place that it has not written would have it read again."""
    now = iter(range(1000))  # one second at every look: reading takes one
    maps = PerfMaps({1234: home}, clock=lambda: next(now))
    path = tmp_path / "tmp" / "perf-7.map"
    path.write_bytes(b"")
    missed = 0
    for number in range(100):
        with path.open("ab") as file:
            file.write(b"%x 10 f\n" % (0x10 * number))
        missed += maps.find(1234, 0x10 * number) is None
    assert 80 <= missed < 99


def test_a_frame_says_that_it_is_generated(home, tmp_path):
    (tmp_path / "tmp" / "perf-7.map").write_bytes(b"1000 10 a;b\x1b\n")
    symbolizer = Symbolizer(homes={1234: home})
    [frame] = symbolizer.frames(Location(None, 0x1004, 0x1003, 1234))
    assert frame == NamedFrame("a:b?_[j]", "a:b?", "a;b\x1b", 4, kind="j")
    [other] = symbolizer.frames(Location(None, 0x5000, 0x5000, 1234))
    assert other.text == "[0x5000]"
    assert [str(one) for one in symbolizer.unnamed()] == [
        "process 1234: 1 place has no name: generated code that /tmp/perf-7.map does not list"
    ]
