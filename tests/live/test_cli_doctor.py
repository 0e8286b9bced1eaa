"""`sfsample doctor`: gates are really closed, and doctor names exactly the closed ones.

Where doctor says that sfsample may attach, a dump succeeds; else the dump is refused and names the same gate.
"""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from sfsample.watching.own_program import own_program
from tests.live.cli_runner import NOBODY, is_root, sfsample
from tests.live.targets import Target, first_line, fixture, python, running
from tests.live.test_cli_errors import (
    HIDE,
    SPIN,
    TRACE,
    as_root,
    beside,
    may_unshare,
)

pytestmark = [pytest.mark.live, pytest.mark.any_load]

GATE = {"name": str, "status": str, "found": str, "remedy": (dict, type(None))}
# installs a seccomp filter on system calls, given by number, and executes the rest of its command line
FILTERED = """
import ctypes, os, struct, sys
numbers, action = eval(sys.argv[1]), int(sys.argv[2], 0)
checks = [(0x15, 0, 1, number) for number in numbers]
program = [(0x20, 0, 0, 0)]
for code, yes, no, number in checks:
    program += [(code, yes, no, number), (0x06, 0, 0, action)]
program.append((0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in program))
header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, header, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[3], sys.argv[3:])
"""
REFUSE, ABSENT = 0x00050001, 0x00050026  # SECCOMP_RET_ERRNO with EPERM, ENOSYS
PTRACE, PROCESS_VM_READV = 101, 310  # their numbers on x86-64


def doctor(*words: object, code: int, wrapper: list[str] | tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the one process of a JSON diagnosis, its keys checked, its gates by name."""
    done = sfsample("doctor", "--json", *words, wrapper=wrapper)
    assert (done.code, done.err) == (code, [])
    document = json.loads(done.out)
    assert list(document) == ["schema", "processes"]
    assert document["schema"] == "sfsample.doctor/1"
    (process,) = document["processes"]
    assert list(process) == ["pid", "name", "may_attach", "gates"]
    for gate in process["gates"]:
        assert gate.keys() == GATE.keys()
        assert all(isinstance(gate[key], kind) for key, kind in GATE.items())
        assert gate["status"] in ("pass", "fail", "unknown")
        if gate["remedy"]:
            assert list(gate["remedy"]) == ["host", "systemd", "docker", "kubernetes"]
    process["gates"] = {gate["name"]: gate for gate in process["gates"]}
    return process


def failing(process: dict[str, Any]) -> set[str]:
    return {name for name, gate in process["gates"].items() if gate["status"] == "fail"}


def assert_refused(pid: int, *gates: str, wrapper: list[str] | tuple[str, ...] = ()) -> None:
    """Assert that exactly these gates are closed, and that a dump is refused and names them."""
    process = doctor("-p", pid, code=4, wrapper=wrapper)
    assert failing(process) == {*gates, "attach"}
    assert process["may_attach"] is False
    error = sfsample("dump", "-p", pid, wrapper=wrapper).refused(4)
    assert f"sfsample doctor {pid} shows everything that may refuse access" in error
    for gate in (process["gates"][name] for name in gates):
        assert gate["found"] in error
        command = f"sudo {shlex.join(own_program('dump', '-p', str(pid)))}"
        assert gate["remedy"]["host"].replace("sudo sfsample ...", command) in error


def test_all_gates_are_open_for_an_own_process(sleeper: Target) -> None:
    process = doctor("-p", sleeper.pid, code=0)
    assert (process["pid"], process["name"], process["may_attach"]) == (sleeper.pid, "target", True)
    assert failing(process) == set()
    assert sfsample("dump", "-p", sleeper.pid).code == 0
    text = sfsample("doctor", "-p", sleeper.pid).out.decode()
    assert text.startswith(f"process {sleeper.pid} target: sfsample may attach\n  pass  ")
    assert "FAIL" not in text
    sleeper.assert_unharmed()


def test_doctor_without_a_target_judges_five_gates() -> None:
    process = doctor(code=0)
    assert (process["pid"], process["may_attach"]) == (None, None)
    names = ["capability", "execve(2)", "ptrace_scope", "ptrace(2)", "process_vm_readv(2)"]
    assert list(process["gates"]) == names
    for name in names[:2]:
        assert process["gates"][name]["status"] == ("pass" if is_root() else "unknown")


@as_root
def test_doctor_says_to_an_ordinary_user_what_stops_may_cost() -> None:
    gate = doctor(code=0, wrapper=NOBODY)["gates"]["execve(2)"]
    assert gate["status"] == "unknown"
    assert gate["found"].startswith("a stop in execve(2) costs a setuid program its privileges")


@as_root
def test_target_of_another_user_is_refused(sleeper: Target) -> None:
    assert_refused(sleeper.pid, "user", "capabilities", wrapper=NOBODY)
    text = sfsample("doctor", "-p", sleeper.pid, wrapper=NOBODY).out.decode()
    assert "  FAIL  user " in text
    assert "\nto open user, capabilities:\n  host:       run as root: sudo " in text
    assert f" doctor -p {sleeper.pid}\n" in text
    assert "sfsample ..." not in text
    assert "systemd:" in text
    assert "kubernetes:" in text


def test_target_that_is_not_dumpable_is_refused() -> None:
    wrapper = NOBODY if is_root() else []
    with beside(SPIN, wrapper) as pid:
        assert doctor("-p", pid, code=0, wrapper=wrapper)["may_attach"] is True
    with beside(HIDE + SPIN, wrapper) as pid:
        assert_refused(pid, "dumpable", wrapper=wrapper)
        if is_root():
            assert "CAP_SYS_PTRACE overrides" in doctor("-p", pid, code=0)["gates"]["dumpable"]["found"]


@as_root
def test_target_with_more_capabilities_is_refused() -> None:
    with beside(SPIN, [*NOBODY, "--inh-caps=+net_admin", "--ambient-caps=+net_admin"]) as pid:
        assert_refused(pid, "capabilities", wrapper=NOBODY)


@pytest.mark.parametrize("how", ["run", "stop"])
def test_existing_tracer_is_named(sleeper: Target, how: str) -> None:
    with python(TRACE, sleeper.pid, how) as tracer:
        assert first_line(tracer) == "traced"
        process = doctor("-p", sleeper.pid, code=4)
        assert "tracer" in failing(process)
        assert process["may_attach"] is False
        error = sfsample("-p", sleeper.pid, "-d", "1s").refused(4)
        assert process["gates"]["tracer"]["found"] in error
        assert f"process {tracer.pid} (" in error
    sleeper.assert_unharmed()


@pytest.mark.skipif(not may_unshare(), reason="user namespaces are not allowed here")
def test_target_in_an_outer_user_namespace_is_refused(sleeper: Target) -> None:
    assert_refused(sleeper.pid, "user namespace", wrapper=["unshare", "-U", "-r"])
    sleeper.assert_unharmed()


@pytest.mark.skipif(not is_root() or not may_unshare(), reason="needs root, and user namespaces")
def test_root_may_attach_in_an_inner_user_namespace() -> None:
    with running(fixture("v3"), "leaf", wrapper=("unshare", "-U", "-r")) as inner:
        process = doctor("-p", inner.pid, code=0)
        assert (process["may_attach"], failing(process)) == (True, set())


def filtered(numbers: tuple[int, ...], action: int) -> list[str]:
    """Return the command prefix that runs a program under a seccomp filter."""
    return [sys.executable, "-c", FILTERED, repr(numbers), hex(action)]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter has x86-64's numbers")
def test_seccomp_filter_on_ptrace_is_named(sleeper: Target) -> None:
    """A dump of threads that sleep needs no ptrace(2); a dump of one that runs names the filter."""
    wrapper = filtered((PTRACE,), REFUSE)
    process = doctor("-p", sleeper.pid, code=4, wrapper=wrapper)
    assert failing(process) == {"ptrace(2)", "attach"}
    assert "a seccomp filter on sfsample refuses ptrace(2)" in process["gates"]["ptrace(2)"]["found"]
    assert failing(doctor(code=4, wrapper=wrapper)) == {"ptrace(2)"}
    assert sfsample("dump", "-p", sleeper.pid, wrapper=wrapper).code == 0
    sleeper.assert_unharmed()
    with running(fixture("v3"), "leaf") as busy:
        assert_refused(busy.pid, "ptrace(2)", wrapper=wrapper)
        busy.assert_unharmed()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter has x86-64's numbers")
def test_seccomp_filter_on_process_vm_readv_is_named(sleeper: Target) -> None:
    for action in (REFUSE, ABSENT):
        process = doctor(code=4, wrapper=filtered((PROCESS_VM_READV,), action))
        assert failing(process) == {"process_vm_readv(2)"}
        found = process["gates"]["process_vm_readv(2)"]["found"]
        assert found == "a seccomp filter on sfsample refuses process_vm_readv(2)"
    assert_refused(sleeper.pid, "process_vm_readv(2)", wrapper=filtered((PROCESS_VM_READV,), REFUSE))


def test_doctor_writes_files(sleeper: Target, tmp_path: Path) -> None:
    assert sfsample("doctor", "-p", sleeper.pid, "-o", tmp_path / "out").out == b""
    assert (tmp_path / "out").read_text().startswith(f"process {sleeper.pid} target: ")
