"""Which process has to act before a thread can go on; several, or none that is certain, are no answer."""

from sfsample.process.facts.descriptors import Descriptor, NearEnd, PeerProcess
from sfsample.process.facts.file_locks import FileLock
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.proc_text import SyscallInfo
from sfsample.waiting.thread import WaitContext, WaitingThread
from sfsample.waiting.waits import Wait, wait_of

PIPE, FILE = Descriptor(3, "pipe", 9, "r", "pipe 9"), Descriptor(4, "file", 77, "rw", "/db")


def waiting(name: str, descriptor: Descriptor, **around: tuple[object, ...]) -> Wait:
    call = DecodedSyscall(SyscallInfo(0, (0,) * 6), name, (), (descriptor,))
    thread = WaitingThread(1, "t", "S", call=call)
    found = wait_of(thread, WaitContext(1, [], [thread], {1: 1}, {}, lambda _: None)._replace(**around))
    assert found is not None
    return found


def test_the_only_process_at_the_other_end_has_to_act() -> None:
    own, child, other = (PeerProcess(pid, NearEnd(9), "w") for pid in (1, 7, 8))
    reader = PeerProcess(6, NearEnd(9), "r")
    for peers, expected in (
        ((child, reader), (7, False)),
        ((child, child._replace(file="/proc/7/fd/5")), (7, False)),
        ((child, other), (None, False)),
        ((own, child), (7, True)),
        ((own,), (1, True)),
        ((), (None, False)),
    ):
        wait = waiting("read", PIPE, peers=peers)
        assert (wait.process, wait.own_end) == expected, peers


def test_a_file_lock_has_the_holder_of_the_part_that_the_process_waits_for() -> None:
    mine, others = FileLock(77, 5, waiter=1), FileLock(77, 6, waiter=2)
    assert waiting("fcntl", FILE, locks=(others, mine)).process == 5
    assert waiting("fcntl", FILE, locks=(mine, mine._replace(holder=8))).process is None, (
        "two threads of it wait"
    )
    assert waiting("fcntl", FILE, locks=(mine._replace(holder=-1),)).process is None, "processes may share it"


def test_a_signal_may_come_from_any_process() -> None:
    wait = waiting("pause", FILE, children=((7, "worker"),))
    assert (wait.pids, wait.process) == ((7,), None)


def test_a_child_is_found_although_its_number_belongs_to_another_pid_namespace() -> None:
    call = DecodedSyscall(SyscallInfo(0, (0,) * 6), "wait4", ("child 7",))
    for children, expected in (
        (((107, "a"),), 107),
        (((7, "a"), (8, "b")), 7),
        (((107, "a"), (108, "b")), None),
        ((), None),
    ):
        thread = WaitingThread(1, "t", "S", call=call)
        context = WaitContext(1, [], [thread], {1: 1}, {}, lambda _: None, children=children)
        wait = wait_of(thread, context)
        assert wait is not None
        assert wait.process == expected
