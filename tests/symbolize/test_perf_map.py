"""What a perf map lists, which user must own it, and when it is read again."""

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
from sfsample.symbolize.perf_map import PerfMap, PerfMapFile, PerfMaps
from sfsample.symbolize.symbol_table import Symbol
from sfsample.symbolize.symbolizer import Symbolizer

MAP = perf_map.perf_map_path(ProcessRoot(None, 7, 0))
DATA = b"1000 10 py::f:/a b.py\n2000 20 JS:*g x.js:1\n1008 8 inner\n"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (0xFFF, None),
        (0x1000, Symbol("py::f:/a b.py", 0x1000, 0x10)),
        (0x1008, Symbol("inner", 0x1008, 8)),
        (0x1010, None),
        (0x201F, Symbol("JS:*g x.js:1", 0x2000, 0x20)),
        (0x2020, None),
        (-1, None),
        (1 << 64, None),
    ],
)
def test_find_returns_the_function_at_an_address(address, expected):
    assert PerfMap(DATA).find(address) == expected


def test_the_last_line_wins_where_functions_overlap():
    overlapping = PerfMap(b"1000 100 old\n1040 100 new\n1000 10 newest\n")
    assert [overlapping.find(a).name for a in (0x1000, 0x1010, 0x1040, 0x10FF, 0x1100)] == [
        "newest", "old", "new", "new", "new"]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"1000", b"1000 10", b"1000 10 ", b"1000 0 f", b"zz 10 f", b"1000 -5 f", b"-1000 2000 f",
     b"ffffffffffffffff 10 f", b"1" * 5000 + b" 10 f", b"1000 1_ f", b"\xff\xfe 1 f",
     b"1000\n10 f", b"1000 10 \t"],
)  # fmt: skip
def test_a_damaged_line_is_skipped(line):
    assert PerfMap(b"4000 10 good\n" + line).find(0x1000) is None
    whole = PerfMap(line + b"\n4000 10 good\n")
    assert whole.find(0x4000).name == "good"


@pytest.mark.parametrize(
    "line",
    [b"1000\t10\tf", b"1000   10   f", b"  1000 10 f", b"0X1000 0x10 f", b"1000 10 f\r", b"\t1000 \t10\t f"],
)
def test_blanks_and_prefixes_are_those_that_perf_reads(line):
    """Source: tools/perf/util/symbol.c, dso__load_perf_map, reads the numbers with strtoull(3)."""
    assert PerfMap(b"4000 10 good\n" + line + b"\n").find(0x1008) == Symbol("f", 0x1000, 0x10)
    assert PerfMap(line).find(0x1008) == Symbol("f", 0x1000, 0x10)


@pytest.mark.parametrize(("size", "name"), [(4095, "unfinished"), (4096, None), (4097, "unfinished")])
def test_last_line_counts_without_a_newline(process_root, tmp_path, size, name):
    """But a file whose size is that of stdio's buffers may end within a line."""
    line = b"1000 10 unfinished"
    data = (b"4000 10 f\n" * 500)[: size - len(line) - 11].rpartition(b"\n")[0]
    data += b"\n" * (size - len(line) - len(data)) + line
    path = tmp_path / "tmp" / "perf-7.map"
    path.write_bytes(data)
    maps = PerfMaps({1234: process_root}, clock=lambda: 0)
    function = maps.find(1234, 0x1000)
    assert (function and function.name) == name
    with path.open("ab") as file:
        file.write(b"_until_now\n1010 10 next\n")
    assert maps.find(1234, 0x1010).name == "next"
    assert maps.find(1234, 0x1000).name == "unfinished_until_now"


@pytest.mark.parametrize("new", [b"1000 10 other\n", b"3000 10 f\n" * 10])
def test_file_that_is_written_anew_replaces_the_functions(process_root, tmp_path, new):
    path = tmp_path / "tmp" / "perf-7.map"
    path.write_bytes(DATA)
    maps = PerfMaps({1234: process_root}, clock=lambda: 0)
    assert maps.find(1234, 0x2000).name == "JS:*g x.js:1"
    path.write_bytes(new)
    assert maps.find(1234, 0x3000) == PerfMap(new).find(0x3000)
    assert maps.find(1234, 0x2000) is None


def test_parts_agree_with_the_whole_file(process_root, tmp_path):
    """A file is read in parts; the last function at an address counts, wherever it is."""
    numbers = random.Random(3)  # noqa: S311 - a test, not cryptography
    path, file = tmp_path / "tmp" / "perf-7.map", PerfMapFile(process_root, clock=lambda: 0)
    whole = b""
    for number in range(300):
        new = b"".join(b"%x %x f%d\n" % (numbers.randrange(0x1000), numbers.randrange(0x80), number)
                       for _ in range(numbers.randrange(1, 20)))  # fmt: skip
        with path.open("ab") as opened:
            opened.write(new)
        whole += new
        assert file.refresh()
    expected = PerfMap(whole)
    assert all(file.find(at) == expected.find(at) for at in range(0x1100))


def test_file_that_grows_for_ever_keeps_its_last_functions(process_root, tmp_path, monkeypatch):
    monkeypatch.setattr(perf_map, "_MAX_FILE_BYTES", 1000)
    path, file = tmp_path / "tmp" / "perf-7.map", PerfMapFile(process_root, clock=lambda: 0)
    for number in range(0x100):
        with path.open("ab") as opened:
            opened.write(b"%x 10 f\n" % (0x1000 + 0x10 * number))
        assert file.refresh()
        assert file.find(0x1000 + 0x10 * number) is not None
    assert sum(len(part.data) for part in file._parts) <= 1000
    assert file.problem.startswith("the perf map is too large: ")


def test_a_name_may_have_any_bytes():
    assert PerfMap(b"10 10 \xff\xfea\0b;c\r\n").find(0x10).name == "\ufffd\ufffda\0b;c"


@given(st.binary(max_size=300), st.integers(-1, 1 << 64))
def test_no_bytes_raise(data, address):
    found = PerfMap(data).find(address)
    assert found is None or found.start <= address < found.start + found.size


def test_find_agrees_with_a_linear_search():
    chance = random.Random(3)  # noqa: S311
    rows = [(chance.randrange(1000), chance.randrange(1, 60), f"f{n}") for n in range(200)]
    table = PerfMap("".join(f"{a:x} {s:x} {n}\n" for a, s, n in rows).encode())
    for address in range(1100):
        covering = [name for start, size, name in rows if start <= address < start + size]
        found = table.find(address)
        assert (found and found.name) == (covering[-1] if covering else None)


# -- owner and location of the file


@pytest.fixture
def process_root(tmp_path):
    (tmp_path / "tmp").mkdir()
    return ProcessRoot(Root(str(tmp_path)), 7, os.geteuid())


def find(process_root, address=0x1000):
    return PerfMaps({1234: process_root}).find(1234, address)


def test_the_file_has_the_pid_that_the_process_sees(process_root, tmp_path):
    (tmp_path / "tmp" / "perf-7.map").write_bytes(DATA)
    assert find(process_root).name == "py::f:/a b.py"
    assert PerfMaps({}).find(1234, 0x1000) is None
    assert PerfMaps({1234: ProcessRoot(None, 7, 0)}).find(1234, 0x1000) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_ignored(process_root, tmp_path):
    path = tmp_path / "tmp" / "perf-7.map"
    path.write_bytes(DATA)
    os.chown(path, 1000, 1000)
    assert find(process_root) is None
    assert find(process_root._replace(uid=1000)).name == "py::f:/a b.py"
    os.chown(path, 0, 0)
    assert find(process_root._replace(uid=1000)).name == "py::f:/a b.py"


def test_links_and_fifos_are_ignored(process_root, tmp_path):
    (tmp_path / "real").write_bytes(DATA)
    path = tmp_path / "tmp" / "perf-7.map"
    path.symlink_to(tmp_path / "real")
    assert find(process_root) is None
    path.unlink()
    os.mkfifo(path)
    assert find(process_root) is None


def test_a_file_that_has_grown_is_read_again_when_an_address_is_missed(process_root, tmp_path):
    path = tmp_path / "tmp" / "perf-7.map"
    maps = PerfMaps({1234: process_root}, clock=lambda: 0)
    assert maps.find(1234, 0x1000) is None
    assert not maps.has_map(1234)
    path.write_bytes(DATA)
    assert maps.find(1234, 0x1000) is not None
    assert maps.has_map(1234)
    assert maps.find(1234, 0x3000) is None
    with path.open("ab") as file:
        file.write(b"3000 10 late\n")
    assert maps.find(1234, 0x3000).name == "late"
    path.unlink()
    assert maps.find(1234, 0x3000).name == "late"  # what was read stays known


def test_only_the_end_of_a_file_that_is_too_large_is_read(process_root, tmp_path, monkeypatch):
    """The last lines count where memory was reused; a line that is cut is skipped."""
    monkeypatch.setattr(perf_map, "_MAX_FILE_BYTES", 1 << 20)
    line = b"1000 10 f\n"
    count = (1 << 20) // len(line) + 100
    (tmp_path / "tmp" / "perf-7.map").write_bytes(b"5000 10 first\n" + line * count + b"1000 10 last\n")
    maps = PerfMaps({1234: process_root})

    assert maps.find(1234, 0x1000).name == "last"
    assert maps.find(1234, 0x5000) is None
    size = 14 + len(line) * count + 13
    [problem] = maps.problems.values()
    words = re.fullmatch(rf"{MAP}: the first (\d+) of (\d+) bytes were not read", problem)
    assert int(words[2]) == size
    assert (1 << 20) - len(line) <= size - int(words[1]) <= 1 << 20
    assert (int(words[1]) - 14) % len(line) == 0  # whole lines


def test_of_too_many_lines_only_the_last_are_read(process_root, tmp_path, monkeypatch):
    """32 MB of lines of six bytes took 5 s and 0.6 GB."""
    monkeypatch.setattr(perf_map, "_MAX_LINES", 100)
    (tmp_path / "tmp" / "perf-7.map").write_bytes(b"".join(b"%x 1 f\n" % (n + 0x100) for n in range(1000)))
    maps = PerfMaps({1234: process_root})
    found = [n for n in range(1000) if maps.find(1234, n + 0x100)]
    assert 50 <= len(found) <= 100
    assert found == list(range(1000 - len(found), 1000))
    assert maps.problems[1234].startswith(f"{MAP}: the first ")

    (tmp_path / "tmp" / "perf-7.map").write_bytes(b"\n" * 1000 + b"x" * 2000)
    assert PerfMaps({1234: process_root}).find(1234, 0x100) is None


@pytest.mark.parametrize("path", ["/proc/self/mem", "/proc/self/attr/current", "/proc/self/pagemap",
                                  "/proc/kpagecount", "/proc/kmsg", "/sys/kernel/profiling"])  # fmt: skip
def test_a_file_of_the_kernel_in_place_of_a_map_costs_names_only(path, process_root, monkeypatch):
    """A mount can put it there; reading some of them fails, and others have no end."""
    if not os.access(path, os.R_OK):
        pytest.skip(f"no {path}")
    monkeypatch.setattr(Root, "open", lambda *_, **__: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    symbolizer = Symbolizer(process_roots={1234: process_root})
    [frame] = symbolizer.frames(Location(None, 0x1004, 0x1003, 1234))
    assert frame.text == "[0x1004]"
    assert len(symbolizer.missing_names()) == 1


@pytest.mark.parametrize(
    ("failure", "why"),
    [(OSError(5, "Input/output error"), "Input/output error"), (MemoryError(), "there is not enough memory")],
)
def test_a_map_that_cannot_be_read_is_a_problem(failure, why, process_root, tmp_path, monkeypatch):
    def fail(*_):
        raise failure

    (tmp_path / "tmp" / "perf-7.map").write_bytes(DATA)
    monkeypatch.setattr(perf_map, "_read_end", fail)
    symbolizer = Symbolizer(process_roots={1234: process_root})
    [frame] = symbolizer.frames(Location(None, 0x1004, 0x1003, 1234))
    assert frame.text == "[0x1004]"
    assert symbolizer.problems == [f"process 1234: {MAP}: cannot be read: {why}"]
    [missing] = symbolizer.missing_names()
    assert missing.why == f"{MAP}: cannot be read: {why}"


def test_reading_again_takes_a_tenth_of_the_time_at_most(process_root, tmp_path):
    """A JIT may write all the time, and every address that it has not listed would cause a read."""
    now = iter(range(1000))  # the clock advances by 1 s with every call: reading takes 1 s
    maps = PerfMaps({1234: process_root}, clock=lambda: next(now))
    path = tmp_path / "tmp" / "perf-7.map"
    path.write_bytes(b"")
    missed = 0
    for number in range(100):
        with path.open("ab") as file:
            file.write(b"%x 10 f\n" % (0x10 * number))
        missed += maps.find(1234, 0x10 * number) is None
    assert 80 <= missed < 99


def test_a_frame_of_generated_code_is_marked(process_root, tmp_path):
    (tmp_path / "tmp" / "perf-7.map").write_bytes(b"1000 10 a;b\x1b\n")
    symbolizer = Symbolizer(process_roots={1234: process_root})
    [frame] = symbolizer.frames(Location(None, 0x1004, 0x1003, 1234))
    assert frame == NamedFrame("a:b?_[j]", "a:b?", "a:b?", address=0x1004, kind="j", symbol_offset=4)
    [other] = symbolizer.frames(Location(None, 0x5000, 0x5000, 1234))
    assert other.text == "[0x5000]"
    assert [str(missing) for missing in symbolizer.missing_names()] == [
        "process 1234: 1 place has no name: generated code that /tmp/perf-7.map does not list"
    ]
