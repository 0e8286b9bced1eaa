"""Which processes may be stopped without CAP_SYS_PTRACE.  Real ones: tests/live/test_privileges.py."""

import os

import pytest

from sfsample.process import exec_guard as module
from sfsample.process.exec_guard import is_young, stops_cost_privileges, stops_keep_privileges
from sfsample.process.permission.gates import CAP_SYS_PTRACE
from sfsample.process.proc_text import PF_FORKNOEXEC, PF_KTHREAD, Stat
from sfsample.process.procfs import stat_of

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PID = 100


def process(cpu_s: float, flags: int = 0) -> Stat:
    return Stat("name", "R", flags, 0, cpu=round(cpu_s * TICKS_PER_S))


@pytest.mark.parametrize(
    ("cpu_s", "flags", "young"),
    [(0.0, 0, True), (0.09, 0, True), (0.1, 0, False), (5.0, 0, False),
     (0.0, PF_FORKNOEXEC, True), (0.49, PF_FORKNOEXEC, True), (0.5, PF_FORKNOEXEC, False),
     (0.2, PF_FORKNOEXEC | PF_KTHREAD, True), (0.2, PF_KTHREAD, False)],
)  # fmt: skip
def test_a_process_is_young_until_it_has_used_some_cpu_time(cpu_s: float, flags: int, young: bool) -> None:
    assert is_young(process(cpu_s, flags)) == young


@pytest.mark.parametrize(
    ("effective", "keeps"),
    [("0000000000000000", False), (f"{1 << CAP_SYS_PTRACE:016x}", True), ("000001ffffffffff", True),
     (f"{~(1 << CAP_SYS_PTRACE) & (1 << 41) - 1:016x}", False)],
)  # fmt: skip
def test_the_effective_capability_decides(
    monkeypatch: pytest.MonkeyPatch, effective: str, keeps: bool
) -> None:
    monkeypatch.setattr(module, "read_text", lambda _: f"Name:\tx\nCapPrm:\t1ff\nCapEff:\t{effective}\n")
    assert stops_keep_privileges() == keeps


def test_an_unreadable_capability_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_text", lambda _: "")
    assert not stops_keep_privileges()


@pytest.fixture
def ages(monkeypatch: pytest.MonkeyPatch) -> list[Stat | None]:
    """What /proc says of the process, one call after the other; sfsample has no capability."""
    made: list[Stat | None] = []
    monkeypatch.setattr(module, "stops_keep_privileges", lambda: False)
    monkeypatch.setattr(module, "stat_of", lambda pid: made.pop(0) if pid == PID else None)
    return made


def test_a_process_is_looked_at_each_time(ages: list[Stat | None]) -> None:
    ages += [process(0.0), process(0.05), process(0.3)]
    assert [stops_cost_privileges(PID) for _ in range(3)] == [True, True, False]


def test_a_process_that_has_ended_is_left_to_the_kernel(ages: list[Stat | None]) -> None:
    ages.append(None)
    assert not stops_cost_privileges(PID)


def test_with_the_capability_nothing_is_looked_at(
    ages: list[Stat | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "stops_keep_privileges", lambda: True)
    assert not stops_cost_privileges(PID)
    assert ages == []


def test_the_kernel_sets_the_flag_at_a_fork_and_clears_it_at_an_exec() -> None:
    child = os.fork()
    if child == 0:
        forked = stat_of(os.getpid())
        os._exit(forked is None or not forked.flags & PF_FORKNOEXEC)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    executed = stat_of(os.getpid())
    assert executed is not None
    assert not executed.flags & PF_FORKNOEXEC
