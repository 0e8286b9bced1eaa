"""The text of /proc files is parsed into values."""

import pytest

from sfsample.process.proc_text import (
    control_group_paths,
    control_groups,
    parse_last_id,
    parse_monotonic_offset_ns,
    parse_stat,
    parse_status,
    parse_syscall,
)


def test_stat_line_with_parentheses_and_spaces_in_the_name_is_parsed():
    fields = [b"S", b"12", *(str(number).encode() for number in range(5, 53))]
    stat = parse_stat(b"34 (a) b (c) " + b" ".join(fields) + b"\n")

    assert (stat.name, stat.state, stat.parent) == ("a) b (c", "S", 12)
    assert (stat.flags, stat.threads, stat.starttime) == (9, 20, 22)
    assert stat.stack_top == 28
    assert not stat.is_over


def test_paths_of_control_groups_begin_with_that_of_version_2():
    assert control_group_paths("4:cpu:/c:d\n1:name=systemd:/b\n0::/a\n") == ["/a", "/b", "/c:d"]
    assert control_group_paths("4:cpu:/c\n0::/\ndamaged\n") == ["/c"]
    assert control_group_paths("") == []


def test_syscall_file_is_parsed():
    assert parse_syscall(b"running\n") is None
    in_call = parse_syscall(b"202 0x1 0x2 0x3 0x4 0x5 0x6 0x7000 0x4000\n")
    outside = parse_syscall(b"-1 0x7000 0x4000\n")

    assert in_call == (202, (1, 2, 3, 4, 5, 6), 0x7000, 0x4000, False)
    assert outside == (-1, (), 0x7000, 0x4000, False)


def test_status_file_is_parsed():
    assert parse_status("Name:\tsh\nUid:\t0\t0\n") == {"Name": "sh", "Uid": "0\t0"}


def test_last_id_is_the_last_field_of_loadavg():
    assert parse_last_id(b"0.10 0.20 0.30 1/200 4711\n") == b"4711"
    assert parse_last_id(b"") is None


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ("0::/system.slice/nginx.service\n", True),
        ("0::/system.slice/nginx.service/workers\n", True),
        ("0::/system.slice/old-nginx.service\n", False),
        ("4:memory:/system.slice/nginx.service\n0::/\n", False),  # not systemd's own hierarchy
        ("1:name=systemd:/system.slice/nginx.service\n", True),
        ("", False),
    ],
)
def test_systemd_unit_is_found_in_the_cgroup_path(cgroup, expected):
    assert ("nginx.service" in control_groups(cgroup)) == expected


def test_offset_of_a_time_namespace_is_in_ns():
    assert parse_monotonic_offset_ns("monotonic 2 5\nboottime 0 0\n") == 2_000_000_005
    assert parse_monotonic_offset_ns("monotonic -1 5\nboottime 0 0\n") == -999_999_995
