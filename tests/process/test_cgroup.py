"""A control group counts only if its directory lists the processes."""

import os

from sfsample.process import cgroup


def fake_proc(monkeypatch, root, texts):
    files = {f"/proc/{pid}/cgroup": f"1:cpu:/other\n0::{path}\n" for pid, path in texts.items()}
    files["/proc/self/mountinfo"] = f"30 23 0:26 / {root} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    read_text = cgroup.read_text
    monkeypatch.setattr(cgroup, "read_text", lambda path: files.get(path) or read_text(path))


def test_group_that_lists_the_processes(tmp_path, monkeypatch):
    group = tmp_path / "a.slice" / "b.service"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("7\n8\n9\n")
    fake_proc(monkeypatch, tmp_path, {7: "/a.slice/b.service", 8: "/a.slice/b.service", 6: "/a.slice"})
    assert cgroup.common_cgroup([7, 8]) == str(group)
    assert cgroup.common_cgroup([7, 6]) is None, "in two groups"
    assert cgroup.common_cgroup([]) is None


def test_group_of_another_namespace_is_unknown(tmp_path, monkeypatch):
    (tmp_path / "cgroup.procs").write_text("1\n")
    fake_proc(monkeypatch, tmp_path, {7: "/", 8: "/../../other"})
    assert cgroup.common_cgroup([7]) is None
    assert cgroup.common_cgroup([8]) is None


def test_version_1_only(monkeypatch):
    monkeypatch.setattr(cgroup, "read_text", lambda _: "4:memory:/x\n")
    assert cgroup.common_cgroup([os.getpid()]) is None
