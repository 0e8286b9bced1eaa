"""Why the kernel refuses: each gate of ptrace(2), from made-up facts, since few can be closed at will.

Law: the gate that is closed is named, one that is open is not, and there is always something to do.
"""

import os

import pytest

from sfsample.process.permission.evidence import them, us
from sfsample.process.permission.gates import (
    CAP_SYS_PTRACE,
    Remedy,
    SelfCredentials,
    TargetCredentials,
    closed,
    gates,
)
from sfsample.process.procfs import ProcFs

PTRACE = 1 << CAP_SYS_PTRACE
NS = "user:[4026531837]"
USER = SelfCredentials(uid=1000, gid=1000, permitted=0, effective=0, yama="", user_namespace=NS)
ROOT = USER._replace(uid=0, gid=0, permitted=PTRACE | 1, effective=PTRACE | 1)
MINE = TargetCredentials((1000,) * 3, (1000,) * 3, 0, None, 1000, NS)
ROOTS = TargetCredentials((0,) * 3, (0,) * 3, PTRACE | 1, None, 0, NS)


def text(us: SelfCredentials, them: TargetCredentials) -> str:
    lines = closed(us, them)
    assert lines
    return " ".join(lines)


def test_another_user() -> None:
    assert "it belongs to uid 0 and you are uid 1000 without CAP_SYS_PTRACE" in text(USER, ROOTS)


@pytest.mark.parametrize("uids", [(1000, 0, 0), (0, 1000, 1000), (1000, 1000, 0)])
def test_every_uid_counts(uids: tuple[int, ...]) -> None:
    assert "it belongs to uid" in text(USER, MINE._replace(uids=uids))


def test_another_group() -> None:
    assert "it belongs to gid 7 and you are gid 1000" in text(USER, MINE._replace(gids=(1000, 7, 7)))


def test_not_dumpable() -> None:
    assert "it is not dumpable" in text(USER, MINE._replace(files_owner=0))


def test_more_capabilities_than_ours() -> None:
    assert "it holds capabilities" in text(USER, MINE._replace(permitted=1 << 13))


@pytest.mark.parametrize(
    ("scope", "words"),
    [("1", "ptrace_scope is 1: only a parent may trace"), ("2", "only CAP_SYS_PTRACE may trace"),
     ("3", "nobody may trace until the next boot")],
)  # fmt: skip
def test_yama(scope: str, words: str) -> None:
    assert words in text(USER._replace(yama=scope), MINE)


@pytest.mark.parametrize(("scope", "told"), [("", 0), ("0", 0), ("1", 0), ("2", 0), ("3", 1)])
def test_root_passes_yama_unless_it_is_locked(scope: str, told: bool) -> None:
    assert ("ptrace_scope" in text(ROOT._replace(yama=scope), MINE)) == told


def test_already_traced_is_told_alone() -> None:
    lines = closed(USER._replace(yama="3"), ROOTS._replace(tracer=(42, "gdb")))
    assert lines[0].startswith("process 42 (gdb) traces it already")
    assert "kill 42" in lines[1]
    assert len(lines) == 2


def test_another_user_namespace() -> None:
    assert "another user namespace" in text(ROOT, MINE._replace(user_namespace="user:[1]"))
    assert "another user namespace" in text(ROOT, MINE._replace(user_namespace=None))
    assert "another user namespace" not in text(USER, ROOTS._replace(user_namespace=None))


def test_two_gates_are_both_told() -> None:
    told = text(USER._replace(yama="2"), ROOTS)
    assert "it belongs to uid 0" in told
    assert "ptrace_scope is 2" in told


def test_no_gate_that_we_know() -> None:
    for side in (USER, ROOT):
        assert "a security module (AppArmor, SELinux) or a seccomp filter" in text(side, MINE)


def test_the_facts_are_read_from_proc() -> None:
    ours = us()
    assert (ours.uid, ours.gid) == (os.getuid(), os.getgid())
    proc = ProcFs(os.getpid())
    try:
        theirs = them(proc)
    finally:
        proc.close()
    assert theirs.uids == os.getresuid()
    assert theirs.gids == os.getresgid()
    assert theirs.permitted == ours.permitted
    assert theirs.user_namespace == ours.user_namespace
    assert theirs.files_owner == os.geteuid()


def test_every_gate_that_is_closed_says_what_to_do() -> None:
    worst = USER._replace(
        yama="3", refused_calls=(("ptrace", 1), ("process_vm_readv", 38)), label="a (enforce)"
    )
    them = TargetCredentials((0, 7, 0), (0,) * 3, PTRACE, (42, "gdb"), 0, None)
    for gate in gates(worst, them):
        assert gate.found
        if gate.status == "fail":
            assert isinstance(gate.remedy, Remedy)
            assert gate.remedy.host
    assert {gate.name for gate in gates(worst, them) if gate.status == "pass"} == set()


def test_a_security_module_that_tells_us_apart_is_named() -> None:
    (gate,) = (
        g
        for g in gates(ROOT, ROOTS._replace(label="docker-default (enforce)"))
        if g.name == "security module"
    )
    assert gate.status == "unknown"
    assert "it runs as docker-default (enforce), you as unconfined" in gate.found
