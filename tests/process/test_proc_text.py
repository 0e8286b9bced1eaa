"""The text of /proc files is parsed into values."""

import pytest

from sfsample.process.proc_text import (
    cgroup_paths,
    container_ids,
    control_group_paths,
    control_groups,
    parse_last_id,
    parse_stat,
    parse_status,
    parse_syscall,
    pod_uids,
)


def test_stat_line_with_parentheses_and_spaces_in_the_name_is_parsed():
    fields = [b"S", b"12", *(str(number).encode() for number in range(5, 53))]
    stat = parse_stat(b"34 (a) b (c) " + b" ".join(fields) + b"\n")

    assert (stat.name, stat.state, stat.parent) == ("a) b (c", "S", 12)
    assert (stat.flags, stat.threads, stat.starttime) == (9, 20, 22)
    assert stat.cpu == 14 + 15
    assert (stat.stack_top, stat.exit_code) == (28, 52)
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


ID, OTHER = "4f1d" * 16, "ab" * 32
UID = "12345678-9abc-def0-1234-56789abcdef0"
UID_ = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "ids"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", [ID]),
        (f"12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/\n", [ID]),
        (f"0::/../../docker/{ID}\n", [ID]),
        (f"0::/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope\n", [ID]),
        (f"0::/kubepods/besteffort/pod{UID}/{ID}\n", [ID]),
        (f"0::/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope/container\n", [ID]),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container\n", [ID]),
        (f"0::/machine.slice/libpod-{ID}.scope\n", [ID]),
        (f"0::/docker/{ID}/docker/{OTHER}\n", [ID, OTHER]),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope\n", []),
        (f"0::/system.slice/crio-conmon-{ID}.scope\n", []),
        ("0::/system.slice/docker.service\n", []),
        (f"0::/docker/{ID[:-1]}\n", []),
        ("", []),
    ],
)
def test_container_ids_are_found_in_every_runtimes_paths(cgroup, ids):
    assert list(container_ids(cgroup)) == ids


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/x.scope\n", UID),
        (f"4:cpu,cpuacct:/kubepods/besteffort/pod{UID}/{ID}\n0::/\n", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice/x\n", UID),
        (f"0::/kubepods/pod{'0af3' * 8}/{ID}\n", "0af3" * 8),  # of a static pod
        (f"0::/machine.slice/libpod-{ID}.scope\n", None),
        ("0::/user.slice/podman-1.scope\n", None),
    ],
)
def test_pod_uid_is_found_with_either_separator(cgroup, uid):
    assert list(pod_uids(cgroup)) == ([uid] if uid else [])


def test_cgroup_paths_have_those_above():
    assert cgroup_paths("0::/a.slice/b.service\n") == {"/", "/a.slice", "/a.slice/b.service"}
    hybrid = cgroup_paths("4:cpu,cpuacct:/a/b\n1:name=systemd:/c\n0::/d\n")
    assert hybrid == {"/a/b", "/a", "/c", "/d", "/"}
    assert cgroup_paths("0::/\n") == {"/"}
    assert cgroup_paths("") == frozenset()
