"""Parsing of /proc/PID/maps: lines that the kernel writes, and damaged ones."""

import pytest

from sfsample.modules.mapping import Mapping, MapsParser
from tests.builders.maps import parse_maps

LIBC = "7f3a10a26000-7f3a10b7b000 r-xp 00026000 08:01 1234 /usr/lib/x86_64-linux-gnu/libc.so.6"


def parse_line(line: str) -> Mapping:
    [mapping] = parse_maps(line + "\n")
    return mapping


def test_a_line_is_parsed_into_all_fields():
    path = "/usr/lib/x86_64-linux-gnu/libc.so.6"

    assert parse_line(LIBC) == Mapping(
        start=0x7F3A10A26000,
        end=0x7F3A10B7B000,
        readable=True,
        executable=True,
        offset=0x26000,
        device="08:01",
        inode=1234,
        path=path,
        deleted=False,
    )


def test_mappings_are_in_the_order_of_the_file():
    text = (
        "55d0c0000000-55d0c0001000 r--p 00000000 fe:00 99                         /usr/bin/prog\n"
        "55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 99                         /usr/bin/prog\n"
        "55d0c1000000-55d0c1021000 rw-p 00000000 00:00 0                          [heap]\n"
        "7f3a10000000-7f3a10021000 rwxp 00000000 00:00 0 \n"
        "7ffd5a000000-7ffd5a021000 rw-p 00000000 00:00 0                          [stack]\n"
        "7ffd5a1f0000-7ffd5a1f2000 r-xp 00000000 00:00 0                          [vdso]\n"
        "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"
    )
    maps = parse_maps(text)

    assert [m.path for m in maps] == [
        "/usr/bin/prog", "/usr/bin/prog", "[heap]", "", "[stack]", "[vdso]", "[vsyscall]"]  # fmt: skip
    assert [m.executable for m in maps] == [False, True, False, True, False, True, True]
    assert [m.readable for m in maps] == [True] * 6 + [False]
    assert [m.is_file for m in maps] == [True, True, False, False, False, False, False]
    assert maps[-1].start == 0xFFFFFFFFFF600000
    assert list(maps) == sorted(maps)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/opt/with space/lib  two.so", "/opt/with space/lib  two.so"),
        ("/opt/trailing ", "/opt/trailing "),
        (r"/opt/new\012line", "/opt/new\nline"),
        (r"/opt/back\slash", r"/opt/back\slash"),
        (r"/opt/not\101octal", r"/opt/not\101octal"),  # the kernel escapes newlines and nothing else
        (r"/opt/no\999number", r"/opt/no\999number"),
        ("/opt/carriage\rreturn", "/opt/carriage\rreturn"),
        ("/opt/form\x0cfeed\x85\u2028", "/opt/form\x0cfeed\x85\u2028"),
        ("/opt/\udcff\udcfe", "/opt/\udcff\udcfe"),  # bytes that are not UTF-8, as surrogateescape has them
        ("[anon:name with space]", "[anon:name with space]"),
    ],
)
def test_path_is_unescaped(text, path):
    assert parse_line(f"1000-2000 r-xp 00000000 08:01 7 {text}").path == path


@pytest.mark.parametrize(
    ("text", "path", "deleted"),
    [
        ("/var/lib.so (deleted)", "/var/lib.so", True),
        ("/memfd:jit (deleted)", "/memfd:jit", True),
        ("/var/a (deleted) b", "/var/a (deleted) b", False),
        ("/var/twice (deleted) (deleted)", "/var/twice (deleted)", True),
        ("[anon] (deleted)", "[anon] (deleted)", False),
    ],
)
def test_deleted_suffix_is_recognized(text, path, deleted):
    mapping = parse_line(f"1000-2000 r-xp 00000000 00:05 7 {text}")

    assert (mapping.path, mapping.deleted, mapping.is_file) == (path, deleted, path[0] == "/")


def test_a_device_without_an_inode_is_not_a_file():
    assert not parse_line("1000-2000 rw-s 00000000 00:05 0 /dev/something").is_file


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "nonsense",
        "1000-2000 r-xp 0 08:01",
        "1000 r-xp 0 08:01 7 /x",
        "x-2000 r-xp 0 08:01 7 /x",
        "1000-y r-xp 0 08:01 7 /x",
        "1000-2000 r 0 08:01 7 /x",
        "1000-2000 r-xp z 08:01 7 /x",
        "1000-2000 r-xp 0 08:01 seven /x",
        "\0" * 100,
    ],
)
def test_a_damaged_line_is_skipped(garbage):
    assert [m.inode for m in parse_maps(f"{LIBC}\n{garbage}\n{LIBC}\n")] == [1234, 1234]


def test_an_empty_file_has_no_mappings():
    assert parse_maps("") == ()


def test_an_unchanged_line_is_parsed_once():
    parser = MapsParser()
    heap = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0"
    first = parser.parse(f"{LIBC}\n{heap}\n".encode())
    assert first == parse_maps(f"{LIBC}\n{heap}\n")
    assert parser.parse(f"{LIBC}\n{heap}\n".encode()) is first

    grown = heap.replace("001000", "009000")
    later = parser.parse(f"{LIBC}\n{grown}\n".encode())
    assert later == parse_maps(f"{LIBC}\n{grown}\n")
    assert later[0] is first[0]
    assert parser.parse(b"") == ()


@pytest.mark.parametrize(("is_there", "path", "deleted"), [
    (True, "/opt/x (deleted)", False), (False, "/opt/x", True),
])  # fmt: skip
def test_file_that_is_really_called_deleted(is_there, path, deleted):
    """A report against stackpulse 0.4.0: such a program had no names."""
    asked = []
    parser = MapsParser(lambda *file: asked.append(file) or is_there)
    line = b"1000-2000 r-xp 00000000 08:01 7 /opt/x (deleted)\n"
    [mapping] = parser.parse(line)
    parser.parse(line + b"3000-4000 r-xp 00000000 08:01 9 /opt/y\n")
    assert (mapping.path, mapping.deleted) == (path, deleted)
    assert asked == [("/opt/x (deleted)", 7)]  # once for each line that is new
