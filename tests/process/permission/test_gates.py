"""Each gate of ptrace(2) is judged from made-up credentials, since few gates can be closed at will.

A closed gate is named, an open one is not, and there is always a remedy.
"""

import os

import pytest

from sfsample.process.permission.evidence import own_credentials, target_credentials
from sfsample.process.permission.gates import (
    CAP_SYS_PTRACE,
    Remedy,
    SelfCredentials,
    TargetCredentials,
    closed_gates_help,
    judge_gates,
)
from sfsample.process.procfs import ProcFs

PTRACE = 1 << CAP_SYS_PTRACE
NS = "user:[4026531837]"
USER = SelfCredentials(uid=1000, gid=1000, permitted=0, effective=0, yama="", user_namespace=NS)
ROOT = USER._replace(uid=0, gid=0, permitted=PTRACE | 1, effective=PTRACE | 1)
OWN_PROCESS = TargetCredentials((1000,) * 3, (1000,) * 3, 0, None, 1000, NS)
ROOT_PROCESS = TargetCredentials((0,) * 3, (0,) * 3, PTRACE | 1, None, 0, NS)


def help_text(own: SelfCredentials, target: TargetCredentials) -> str:
    lines = closed_gates_help(own, target)
    assert lines
    return " ".join(lines)


def test_target_of_another_user_is_refused() -> None:
    assert "it belongs to uid 0 and you are uid 1000 without CAP_SYS_PTRACE" in help_text(USER, ROOT_PROCESS)


@pytest.mark.parametrize("uids", [(1000, 0, 0), (0, 1000, 1000), (1000, 1000, 0)])
def test_each_of_three_uids_must_match(uids: tuple[int, ...]) -> None:
    assert "it belongs to uid" in help_text(USER, OWN_PROCESS._replace(uids=uids))


def test_target_of_another_group_is_refused() -> None:
    assert "it belongs to gid 7 and you are gid 1000" in help_text(
        USER, OWN_PROCESS._replace(gids=(1000, 7, 7))
    )


def test_gates_that_one_remedy_opens_are_named_before_it() -> None:
    user, capabilities, host, container = closed_gates_help(USER, ROOT_PROCESS)
    assert (user[:13], capabilities[:21]) == ("it belongs to", "it holds capabilities")
    assert user.endswith(";")
    assert capabilities.endswith(";")
    assert host.startswith("run as root")
    assert container.startswith("in a container: ")


def test_target_that_is_not_dumpable_is_refused() -> None:
    assert "it is not dumpable" in help_text(USER, OWN_PROCESS._replace(files_owner=0))


def test_target_with_more_capabilities_is_refused() -> None:
    assert "it holds capabilities" in help_text(USER, OWN_PROCESS._replace(permitted=1 << 13))


@pytest.mark.parametrize(
    ("scope", "words"),
    [("1", "ptrace_scope is 1: only a parent may trace"), ("2", "only CAP_SYS_PTRACE may trace"),
     ("3", "no process may trace until the next boot")],
)  # fmt: skip
def test_ptrace_scope_is_named(scope: str, words: str) -> None:
    assert words in help_text(USER._replace(yama=scope), OWN_PROCESS)


@pytest.mark.parametrize(("scope", "closed"), [("", 0), ("0", 0), ("1", 0), ("2", 0), ("3", 1)])
def test_root_passes_yama_unless_scope_is_3(scope: str, closed: bool) -> None:
    assert ("ptrace_scope" in help_text(ROOT._replace(yama=scope), OWN_PROCESS)) == closed


def test_tracer_is_named_only_if_nothing_else_refuses() -> None:
    """The advice to end the tracer would not help an ordinary user beside root's watch."""
    [cause, remedy] = closed_gates_help(ROOT, ROOT_PROCESS._replace(tracer=(42, "gdb")))
    assert cause.startswith("process 42 (gdb) traces it already")
    assert "kill 42" in remedy
    [_, remedy_of_sfsample] = closed_gates_help(ROOT, ROOT_PROCESS._replace(tracer=(42, "sfsample")))
    assert remedy_of_sfsample == "try again: another sfsample traces it only for a moment"
    refused = help_text(USER, ROOT_PROCESS._replace(tracer=(42, "gdb")))
    assert "it belongs to uid 0 and you are uid" in refused
    assert "42" not in refused


def test_target_in_another_user_namespace_is_refused() -> None:
    assert "another user namespace" in help_text(ROOT, OWN_PROCESS._replace(user_namespace="user:[1]"))
    assert "another user namespace" in help_text(ROOT, OWN_PROCESS._replace(user_namespace=None))
    assert "another user namespace" not in help_text(USER, ROOT_PROCESS._replace(user_namespace=None))


def test_two_closed_gates_are_both_named() -> None:
    text = help_text(USER._replace(yama="2"), ROOT_PROCESS)
    assert "it belongs to uid 0" in text
    assert "ptrace_scope is 2" in text


def test_help_without_a_closed_gate_names_what_cannot_be_seen() -> None:
    for own in (USER, ROOT):
        assert "a security module (AppArmor, SELinux) or a seccomp filter" in help_text(own, OWN_PROCESS)


def test_credentials_are_read_from_proc() -> None:
    own = own_credentials()
    assert (own.uid, own.gid) == (os.getuid(), os.getgid())
    proc = ProcFs(os.getpid())
    try:
        target = target_credentials(proc)
    finally:
        proc.close()
    assert target.uids == os.getresuid()
    assert target.gids == os.getresgid()
    assert target.permitted == own.permitted
    assert target.user_namespace == own.user_namespace
    assert target.files_owner == os.geteuid()


def test_every_closed_gate_has_a_remedy() -> None:
    refused = frozenset({"ptrace", "process_vm_readv"})
    worst = USER._replace(yama="3", refused_calls=refused, label="a (enforce)")
    target = TargetCredentials((0, 7, 0), (0,) * 3, PTRACE, (42, "gdb"), 0, None)
    for gate in judge_gates(worst, target):
        assert gate.found
        if gate.status == "fail":
            assert isinstance(gate.remedy, Remedy)
            assert gate.remedy.host
    assert {gate.name for gate in judge_gates(worst, target) if gate.status == "pass"} == set()


def test_different_security_labels_are_named() -> None:
    target = ROOT_PROCESS._replace(label="docker-default (enforce)")
    (gate,) = (gate for gate in judge_gates(ROOT, target) if gate.name == "security module")
    assert gate.status == "unknown"
    assert "it runs as docker-default (enforce), you as unconfined" in gate.found
