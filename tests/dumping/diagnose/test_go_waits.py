"""What is said of goroutines that wait for locks, and what is not said."""

from struct import pack_into

import pytest

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Frame, Stack, StopReason
from sfsample.dumping.diagnose.go_waits import GoVerdict, GoWaits, Waiting, names_of
from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.goroutines import group_goroutines, is_of_runtime, name_goroutines
from sfsample.dumping.model import (
    GoFacts,
    GoroutineGroup,
    GoroutineMember,
    ProcessDump,
    ThreadDump,
    ThreadState,
)
from sfsample.dumping.text import Style, _goroutines, _without_wrappers
from sfsample.process.go_capture import FoundGoroutine
from sfsample.process.proc_text import SchedStat
from sfsample.runtimes.go.layout import Goroutine, GoWait
from sfsample.runtimes.go.pending_unlocks import Unlock
from sfsample.runtimes.go.waits import OBJECT_START
from sfsample.symbolize.named_frame import NamedFrame

A, B = 0x1000, 0x2000  # mutexes
LOCKED = 1
LOCK = ("sync.runtime_SemacquireMutex", "internal/sync.(*Mutex).lockSlow", "main.transfer")


def stack_of(pcs):
    frames = tuple(Frame(pc, pc, pc + 8, "gopclntab", exact=False) for pc in pcs)
    return Stack(frames, StopReason.OUTERMOST, None)


def group(functions, *members, state="sync.Mutex.Lock"):
    names = tuple((NamedFrame(name, name, inlined=name.endswith("_[i]")),) for name in functions)
    stack = stack_of(range(len(functions)))
    return GoroutineGroup(members, state, 0, (), stack, (None,) * len(functions), names)


def member(goid, mutex=0, unlocks=()):
    wait = GoWait((mutex + 4,)) if mutex else GoWait()
    return GoroutineMember(goid, None, 0, 0, wait, tuple(Unlock(lock, "Unlock") for lock in unlocks))


def mutex_copy(state=LOCKED):
    """Return the memory around a mutex, as it is kept for its semaphore."""
    copy = bytearray(56)
    pack_into("<I", copy, -4 - OBJECT_START, state)
    return bytes(copy)


def verdict(*groups, unmoved=None, state=LOCKED):
    objects = {A + 4: mutex_copy(state), B + 4: mutex_copy(state)}
    dump = ProcessDump(1, "go", [], None, 0.0, (), (), goroutines=groups, go=GoFacts(objects, {}, unmoved))
    waits = GoWaits(dump).find()
    judge = GoVerdict(dump, waits)
    return waits, [*judge.rings(), *judge.blocked()]


def test_the_census_says_where_most_goroutines_wait_and_since_when():
    receivers = [GoroutineMember(goid, since_s, 0) for goid, since_s in ((2, None), (3, 700.0), (4, 60.0))]
    groups = (group(("runtime.gopark", "main.work_[i]"), *receivers, state="chan receive"),
              group(("main.main",), GoroutineMember(1, None, 0), state="running"))  # fmt: skip
    dump = ProcessDump(1, "go", [], None, 0.0, (), (), goroutines=groups)
    assert GoVerdict(dump, {}).census().text == (
        "4 goroutines: 3 chan receive, 1 running; 3 of them in main.work, for at least 12 min"
    )
    dump = dump._replace(goroutines=groups[1:])
    assert GoVerdict(dump, {}).census().text == "1 goroutine: 1 running"


def test_the_place_of_a_wait_is_no_function_that_only_passes_it_on():
    names = ("runtime.gopark", "internal/poll.(*FD).Read", "net.(*conn).Read", "net/http.(*conn).serve")
    waiting = group((*names, "main.main.gowrap1"), member(2), member(3), state="IO wait")
    started = group(("main.main.gowrap1", "runtime.goexit"), member(4), member(5), state="runnable")
    dump = ProcessDump(1, "go", [], None, 0.0, (), (), goroutines=(waiting,))
    text = "2 goroutines: 2 IO wait; 2 of them in net/http.(*conn).serve"
    assert GoVerdict(dump, {}).census().text == text
    assert GoVerdict(dump._replace(goroutines=(started,)), {}).census().text == "2 goroutines: 2 runnable"


def test_a_mutex_is_no_once_because_a_library_takes_it_within_a_once():
    names = (*LOCK[:2], "internal/godebug.(*Setting).Value", "sync.(*Once).doSlow", "main.main")
    waits, _ = verdict(group(names, member(6, A)))
    assert waits[6].kind == "mutex"


def test_a_wait_group_says_how_many_calls_it_waits_for():
    names = ("sync.runtime_SemacquireWaitGroup", "sync.(*WaitGroup).Wait", "main.main")
    waiting = group(names, member(6, A), state="sync.WaitGroup.Wait")
    dump = ProcessDump(1, "go", [], None, 0.0, (), (), goroutines=(waiting,))
    texts = [
        GoWaits(dump._replace(go=GoFacts({A + 4: mutex_copy(missing)}))).find()[6].text for missing in (1, 3)
    ]
    assert texts == [
        "waits for 1 more Done call of WaitGroup 0xffc",
        "waits for 3 more Done calls of WaitGroup 0xffc",
    ]


@pytest.mark.parametrize(("count", "text"), [(20, "20 channels: "), (64, "64 or more channels: ")])
def test_a_select_says_how_many_channels_it_has(count, text):
    waiting = GoroutineMember(6, None, 0, 0, GoWait(tuple(range(0x1000, 0x1000 + 8 * count, 8))))
    dump = ProcessDump(1, "go", [], None, 0.0, (), (), goroutines=(group((), waiting, state="select"),))
    assert GoWaits(dump).find()[6].text.startswith(f"waits for one of {text}")


def test_a_goroutine_with_functions_of_the_runtime_only_is_the_runtimes_own():
    """The creator of the goroutine does not matter."""
    creator = {1: NamedFrame("unique.register", "unique.register")}
    names = (
        "runtime.gopark",
        "runtime.unique_register.func2",
        "runtime.unique_register.gowrap1",
        "runtime.goexit",
    )
    own = group(names, member(6), state="chan receive")._replace(creator_names=creator)
    finalizer = group(("main.close", "runtime.runfinq", "runtime.goexit"), member(7))
    running = own._replace(names=(), stack=None)
    assert [is_of_runtime(g) for g in (own, finalizer, running)] == [True, False, False]


def test_goroutines_that_wait_for_different_objects_are_not_said_to_wait_for_the_same():
    sockets = group(("runtime.gopark", "main.read"), member(6), member(7), state="IO wait")
    waits = {goid: Waiting("events", f"waits for events on fd {goid}") for goid in (6, 7)}
    text = "\n".join(_goroutines(sockets, waits, Style(str)))
    assert "waits for events on fd 6, and the other goroutines for similar objects" in text
    waits = {goid: Waiting("sleep", f"sleeps {goid}.0 s more") for goid in (6, 7)}
    text = "\n".join(_goroutines(sockets, waits, Style(str)))
    assert "sleeps 6.0 s more, and the other goroutines for other times" in text


RING = member(6, A, [B]), member(7, B, [A])


def test_a_ring_that_has_not_moved_is_a_deadlock():
    _, [finding] = verdict(group(LOCK, *RING), unmoved=frozenset({6, 7}))
    assert (finding.kind, finding.goroutines) == ("deadlock", (6, 7))
    assert finding.text == "DEADLOCK: 2 goroutines wait for each other, and none can go on"
    assert finding.lines[0] == (
        "goroutine 6 in main.transfer waits for mutex 0x1000; goroutine 7 has a deferred Unlock of it pending"
    )


def test_a_ring_of_goroutines_that_may_have_unlocked_by_hand_is_no_deadlock():
    """One has `defer a.Unlock()`, but has called a.Unlock() itself; a third goroutine may hold the lock."""
    by_hand = RING[1]._replace(unlocks=(Unlock(A, "Unlock", by_hand=True),))
    _, [finding] = verdict(group(LOCK, RING[0], by_hand), unmoved=frozenset({6, 7}))
    assert (finding.kind, finding.goroutines) == ("blocked", (6, 7))
    assert finding.text == "each of 2 goroutines waits for a lock that the next one has deferred to unlock"


@pytest.mark.parametrize("unmoved", [None, frozenset(), frozenset({6})])
def test_a_ring_that_may_have_moved_is_none(unmoved):
    _, findings = verdict(group(LOCK, *RING), unmoved=unmoved)
    assert all(finding.kind == "blocked" and "DEADLOCK" not in finding.text for finding in findings)
    assert [finding.goroutines for finding in findings] == {None: [(6, 7)], frozenset({6}): [(6, 7)]}.get(
        unmoved, []
    )


def test_a_goroutine_that_waits_for_a_condition_has_released_its_lock():
    condition = group(("sync.(*Cond).Wait", "main.consume"), member(7, 0, [A]), state="sync.Cond.Wait")
    waits, _ = verdict(group(LOCK, member(6, A)), condition)
    assert waits[6].goroutines == ()
    assert waits[6].text.endswith("no deferred Unlock of it was found, and Go notes no owner")


def test_two_goroutines_with_a_deferred_unlock_are_no_proof():
    others = group(("main.work",), member(7, 0, [A]), member(8, B, [A]), state="chan receive")
    waits, findings = verdict(group(LOCK, member(6, A, [B])), others, unmoved=frozenset({6, 7, 8}))
    assert (waits[6].goroutines, waits[6].only) == ((7, 8), None)
    assert "DEADLOCK" not in findings[0].text


def test_a_mutex_that_is_free_now_has_no_holder():
    waits, _ = verdict(group(LOCK, *RING), state=0)
    assert waits[6].text == "waits for mutex 0x1000, which is not locked now"
    assert waits[6].goroutines == ()


def test_a_mutex_locked_twice_is_no_certain_deadlock():
    _, [finding] = verdict(group(LOCK, member(9, A, [A])), unmoved=frozenset({9}))
    assert finding.kind == "blocked"
    assert finding.text.endswith("only this goroutine has a deferred Unlock of it pending")


def test_a_semaphore_of_unknown_use_is_no_lock():
    waits, findings = verdict(group(("runtime.semacquire", "main.x"), member(6, A), state="semacquire"))
    assert (waits[6].kind, waits[6].text) == ("semaphore", "waits for semaphore 0x1004")
    assert findings == []


def test_goroutines_at_the_same_lines_are_one_group():
    """The places of creation, and the pcs, may differ: the compiler copies code."""

    def found(goid, pc, created_at):
        goroutine = Goroutine(0, goid, "chan receive", 0, 1, created_at, 0, pc, 0, 0, 0, 0, 0, 0, b"")
        return FoundGoroutine(goroutine, stack_of([pc]), ())

    def namer(place):
        name = "main.start" if place.address >= 100 else "main.receive"
        line = place.address if place.address >= 100 else 5
        return (NamedFrame(f"{name}:{line}", name, file="x.go", line=line),)

    groups = group_goroutines([found(5, 1, 100), found(6, 1, 101), found(7, 2, 100)], lambda _: None)
    assert [[member.id for member in group.members] for group in groups] == [[5, 6], [7]]
    [group] = name_goroutines(groups, namer, 1)
    assert [member.id for member in group.members] == [5, 6, 7]
    assert {pc: name.line for pc, name in group.creator_names.items()} == {100: 100, 101: 101}


def test_many_goroutines_are_named_shortly():
    assert names_of([7]) == "goroutine 7"
    assert names_of([7, 8]) == "goroutines 7, 8"
    assert names_of(range(1, 9)) == "goroutines 1, 2, 3, 4, 5 and 3 more"


def thread(tid, *looks, moving=False):
    """Return a thread with these frames (function: CFA) at each look; `moving`: it ran between the looks."""
    stacks = [Stack(tuple(Frame(1, cfa, cfa, "gopclntab", exact=False) for cfa in frames.values()),
                    StopReason.OUTERMOST, None) for frames in looks]  # fmt: skip
    states = tuple(
        ThreadState(at, "R" if moving else "S", SchedStat(at * moving, 0, 0), Capture.READ, stack)
        for at, stack in enumerate(stacks)
    )
    dump = ThreadDump(
        tid, "go", "S", stack=stacks[-1], modules=(None,) * len(looks[-1]), ns_tid=tid, looks=states
    )
    return NamedThread(1, dump, tuple((NamedFrame(name, name),) for name in looks[-1]))


def stopped(groups, threads, *, is_whole=True, unmoved=frozenset({1, 6})):
    own = tuple(thread.dump for thread in threads)
    facts = GoFacts(is_whole=is_whole, unmoved=unmoved)
    dump = ProcessDump(1, "go", [], None, 0.0, own, (), goroutines=groups, go=facts)
    return [finding.text for finding in GoVerdict(dump, {}, threads).stopped()]


STOP = {"runtime.notetsleep": 8, "runtime.stopTheWorldWithSema": 16, "main.main": 24}
SPIN = group((), member(6), state="running")._replace(tid=5)
STOPPER = group((), member(1), state="running")._replace(tid=4)


def test_a_goroutine_that_does_not_give_way_holds_up_a_stop_of_the_world():
    busy = thread(5, {"main.spin": 8}, {"main.spin": 8}, moving=True)
    assert stopped((SPIN, STOPPER), [thread(4, STOP, STOP, moving=True), busy]) == [
        "the runtime stops the program, and waits for goroutine 6, which runs and does not give way"
    ]
    # the goroutine has given way between the looks, and runs again; this is another stop of the same function
    assert stopped((SPIN, STOPPER), [thread(4, STOP, STOP, moving=True), busy], unmoved=frozenset()) == []
    later = STOP | {"runtime.stopTheWorldWithSema": 20}  # another stop
    assert stopped((SPIN, STOPPER), [thread(4, STOP, later, moving=True), busy]) == []
    assert stopped((SPIN, STOPPER), [thread(4, STOP, moving=True), busy]) == []  # one look
    assert stopped((STOPPER,), [thread(4, STOP, STOP, moving=True)]) == []


ASLEEP = (group(("main.f",), member(6), member(7), state="chan receive"), group(("main.g",), member(8)))
NO_TIMER = "none of 3 goroutines can go on: only a timer or C code can wake one"
IDLE = {"runtime.futex": 8}


def test_a_program_whose_goroutines_all_wait_for_others_cannot_go_on():
    runtimes = group(("runtime.bgsweep",), member(2), state="GC sweep wait")._replace(
        creator_names={9: NamedFrame("runtime.gcenable", "runtime.gcenable")}
    )
    assert stopped((*ASLEEP, runtimes), [thread(4, IDLE, IDLE)]) == [NO_TIMER]


@pytest.mark.parametrize("state", ["running", "syscall", "IO wait", "sleep", "runnable", "waiting"])
def test_a_program_with_a_goroutine_that_may_go_on_is_not_asleep(state):
    assert stopped((*ASLEEP, group(("main.h",), member(9), state=state)), [thread(4, IDLE, IDLE)]) == []


def test_a_program_may_have_run_or_have_more_goroutines():
    assert stopped(ASLEEP, [thread(4, IDLE, IDLE, moving=True)]) == []
    assert stopped(ASLEEP, [thread(4, IDLE)]) == []  # one look
    assert stopped(ASLEEP, [thread(4, IDLE, IDLE)], is_whole=False) == []


def test_a_wrapper_of_a_go_statement_is_left_out_of_the_text():
    rows = group(("main.worker", "main.main.gowrap1", "runtime.goexit"), member(6)).rows(None)
    shown = [[name.function for name in names] for _, _, names in _without_wrappers(rows)]
    assert shown == [["main.worker"], [], ["runtime.goexit"]]
