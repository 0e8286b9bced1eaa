"""Which threads wait for which, which form a group, and how a verdict names them."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.core.printable import columns
from sfsample.core.stack import Found
from sfsample.dumping.diagnose.named_thread import NamedThread, fold_name, group_threads, short_name
from sfsample.dumping.diagnose.verdict import ProcessSet, judge
from sfsample.dumping.diagnose.wait_graph import (
    Node,
    blockers,
    chain,
    cycles,
    mutual,
    stuck,
    with_processes,
)
from sfsample.dumping.diagnose.wording import common_name, format_seconds
from sfsample.dumping.json import dump_json
from sfsample.dumping.model import Call, GoroutineGroup, GoroutineMember
from sfsample.dumping.text import Style, _wrap, dump_text, sort_groups
from sfsample.modules.location import PythonPlace
from sfsample.process.facts.descriptors import Descriptor, NearEnd, PeerProcess
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.facts.thread_facts import LastRunTime
from sfsample.process.proc_text import SchedStat, SyscallInfo
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.waiting.thread import bare_symbol
from sfsample.waiting.waits import Wait
from tests.builders.hang_builder import WAIT, _PathModule, futex, process, seen, thread, words


def n(tid: int, pid: int = 1) -> Node:
    return Node(pid, tid)


def test_cycles_are_found_once_from_their_smallest_member() -> None:
    edges = {n(3): n(2), n(2): n(3), n(4): n(2), n(6): n(5), n(5): n(7), n(7): n(6), n(9): n(9), n(10): n(11)}
    assert cycles(edges) == ((n(2), n(3)), (n(5), n(7), n(6)), (n(9),))
    assert cycles({}) == ()


def test_blockers_have_all_nodes_that_wait_behind_them() -> None:
    assert blockers({n(1): n(2), n(2): n(3), n(4): n(3)}) == {n(3): (n(1), n(2), n(4))}
    assert blockers({n(1): n(2), n(2): n(1), n(3): n(1)}) == {}, "every chain ends in a cycle"


@given(st.dictionaries(st.integers(0, 12), st.integers(0, 12)))
def test_every_waiting_node_ends_in_a_cycle_or_behind_a_blocker(raw: dict[int, int]) -> None:
    edges = {n(a): n(b) for a, b in raw.items()}
    cyclic = {member for cycle in cycles(edges) for member in cycle}
    behind = {waiter: end for end, waiters in blockers(edges).items() for waiter in waiters}
    for start in edges:
        path = [start]
        while path[-1] in edges and edges[path[-1]] not in path:
            path.append(edges[path[-1]])
        ends_in_cycle = path[-1] in edges
        assert ends_in_cycle == (start not in behind)
        assert ends_in_cycle == (path[-1] in cyclic)
    for cycle in cycles(edges):
        assert all(edges[a] == b for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True))


def test_mutual_nodes_are_those_that_need_only_each_other_and_none_behind_them() -> None:
    assert mutual({n(1): {n(2)}, n(2): {n(1)}, n(3): {n(1)}}) == {n(1), n(2)}, "3 is behind"
    assert mutual({n(1): {n(2), n(3)}, n(2): {n(1)}}) == set(), "3 may act"
    assert mutual({n(1): {n(2), n(3)}, n(2): {n(1)}, n(3): {n(1)}}) == {n(1), n(2), n(3)}
    assert mutual({n(1): {n(2)}, n(2): ()}) == mutual({}) == set()


def test_process_waits_when_each_of_its_threads_waits() -> None:
    other = n(0, pid=2)
    edges = with_processes({n(1): other, n(2): n(1), n(3, pid=2): n(0)})
    assert edges[n(0)] == n(1)
    assert edges[other] == n(3, pid=2)
    assert len(cycles(edges)) == 1
    assert cycles(with_processes({n(1): other, n(2): None, n(3, pid=2): n(0)})) == (), (
        "a thread is free to act"
    )


def test_process_is_stuck_when_no_thread_that_it_waits_for_can_go_on() -> None:
    """One thread waits for process 2, which waits for process 1; the other waits for a busy thread."""
    first, second, busy = n(0), n(0, pid=2), n(9, pid=3)
    edges = with_processes({n(1): second, n(2): busy, n(3, pid=2): first, busy: None})
    assert len(cycles(edges)) == 1, "by the first thread"
    assert stuck(edges) == set()
    edges = with_processes({n(1): second, n(2): second, n(3, pid=2): first})
    assert stuck(edges) == {n(1), n(2), n(3, pid=2), first, second}


def test_a_chain_goes_to_its_end_or_once_around_a_circle() -> None:
    assert chain(n(1), {n(1): n(2), n(2): n(3)}) == (n(1), n(2), n(3))
    assert chain(n(3), {n(1): n(2)}) == (n(3),)
    circle = {n(1): n(2), n(2): n(3), n(3): n(2)}
    assert chain(n(1), circle) == (n(1), n(2), n(3))


def locked(tid: int, word: int, owner: int, name: str = "app", pid: int = 1) -> NamedThread:
    """Return a thread that waits for a mutex."""
    memory = words(word, {0: 2, 8: owner})
    call = futex(word, WAIT, 2)
    one = thread("pthread_mutex_lock", "|", "f", call=call, memory=memory, tid=tid, name=name, pid=pid)
    return seen(one, 1.0, 2.0)


def reading(pid: int, tid: int, name: str = "app") -> NamedThread:
    """Return a thread that reads an empty pipe."""
    pipe = Descriptor(3, "pipe", 9, "r", "pipe 9, read end")
    call = DecodedSyscall(SyscallInfo(0, (3, 0, 0, 0, 0, 0)), "read", ("3 <pipe>",), (pipe,))
    return seen(thread("read", "|", "load", "g", call=call, tid=tid, pid=pid, name=name), 1.0, 2.0)


def first_sentence(*threads: NamedThread, **fields: object) -> str:
    dump, named = process(*threads)
    return judge([(dump._replace(**fields), named)]).findings[0].text


def test_the_first_sentence_goes_on_to_the_end_of_the_chain() -> None:
    middle, reader = locked(2, 0x6000, 3, "middle"), reading(1, 3, name="reader")
    end = "held by thread 3 (reader), which waits for data in pipe 9, which is empty (fd 3), in load <- g"
    assert first_sentence(locked(1, 0x6000, 3), reader) == (
        f"the main thread (1), in f, waits for mutex 0x6000, {end}")  # fmt: skip
    chained = f"thread 2 (middle), which waits for mutex 0x6000, {end}"
    assert first_sentence(locked(1, 0x5000, 2), middle, reader) == (
        f"the main thread (1), in f, waits for mutex 0x5000, held by {chained}"
    )
    turns = seen(middle, 1.0, 2.0, (5, 6))
    assert first_sentence(locked(1, 0x5000, 2), turns, reader).startswith(
        "mutex 0x6000: 2 threads (app, middle), 1 of them behind others, wait for thread 3 (reader), which "
    ), "they may take turns"
    more = [locked(tid, 0x5000, 2, f"w-{tid}") for tid in (4, 5)]
    assert first_sentence(locked(1, 0x5000, 2), middle, reader, *more).endswith(
        "in load <- g; 2 more threads wait behind them (w-*)"
    )
    workers = [locked(tid, 0x6000, 3, f"w-{tid}") for tid in (4, 5)]
    assert first_sentence(*workers, reader) == (
        "mutex 0x6000: 2 threads (w-*) wait for thread 3 (reader), which waits for data in pipe 9, "
        "which is empty (fd 3), in load <- g"
    ), "the lock comes first"


def test_a_usual_wait_of_the_last_thread_hides_no_lock() -> None:
    reader, child = reading(1, 3, name="reader"), PeerProcess(7, NearEnd(9), "w")
    clients = [seen(locked(tid, 0x6000, 3, f"c-{tid}"), 1.0, 2.0, (5, 6)) for tid in (4, 5)]
    assert first_sentence(*clients, reader, peers=(child,)).startswith(
        "mutex 0x6000: 2 threads (c-*) wait for thread 3 (reader), which waits for data in pipe 9"
    )


def test_threads_behind_a_deadlock_are_in_its_sentence() -> None:
    pair = locked(2, 0x5000, 3, "a"), locked(3, 0x6000, 2, "b")
    waiting = [locked(tid, 0x5000, 3, f"w-{tid}") for tid in (4, 5)]
    text = "DEADLOCK: 2 threads wait for each other, and none can go on"
    assert first_sentence(*pair) == text
    assert first_sentence(*pair, waiting[0]) == f"{text}; 1 more thread waits behind them (w-4)"
    assert first_sentence(*pair, *waiting) == f"{text}; 2 more threads wait behind them (w-*)"
    assert first_sentence(locked(3, 0x5000, 3, "a"), waiting[0]) == (
        "DEADLOCK: thread 3 (a) waits for a lock that it holds itself; 1 more thread waits behind it (w-4)"
    )


def test_a_pipe_that_only_its_reader_writes_to() -> None:
    own, child = (PeerProcess(pid, NearEnd(9), "w") for pid in (1, 7))
    text = "which is empty (fd 3), whose only writer is this process itself, so nothing will come"
    alone = f"process 1 (app) waits for data in pipe 9, {text}, in load <- g"
    assert first_sentence(reading(1, 1), peers=(own,)) == alone
    other = seen(thread("main", tid=2), 1.0, 2.0)
    assert f"{text} unless another of its threads acts" in first_sentence(reading(1, 1), other, peers=(own,))
    assert "to be written by process 7 (?), in load" in first_sentence(reading(1, 1), peers=(own, child))


def test_a_stop_is_said_once_with_its_signal() -> None:
    dump, threads = process(seen(thread("main", state="T"), 1.0, 2.0))
    assert first_sentence(*threads).endswith("is stopped; resume it with kill -CONT 1"), "an older kernel"
    assert (
        judge([(dump._replace(stop_signal=99), threads)])
        .findings[0]
        .text.endswith("1 (app) is stopped; resume it with kill -CONT 1")
    )
    verdict = judge([(dump._replace(stop_signal=20), threads)])
    assert verdict.findings[0].text == "process 1 (app) is stopped by SIGTSTP; resume it with kill -CONT 1"
    assert "\n".join(dump_text(verdict, Style(str))).count("kill -CONT") == 1


def test_a_wait_in_the_kernel_says_that_signals_wait_too() -> None:
    call = DecodedSyscall(SyscallInfo(0, (3, 0, 0, 0, 0, 0)), "read", ("3 <disk>",))
    waiting = seen(thread("read", "|", "load", call=call, state="D"), 1.0, 2.0)
    assert "; signals, often even kill -9, take effect only when the call ends, in load" in first_sentence(
        waiting
    )


def crashed(*functions: str | None, interrupted_at: int | None = None) -> str:
    """Return the first sentence on a core file; `interrupted_at`: the frame that a signal interrupted."""
    _, [named] = process(thread(*functions, state=""))
    stack = named.dump.stack
    assert stack is not None
    frames = [frame._replace(found=Found.SIGNAL_FRAME if at == interrupted_at else frame.found)
              for at, frame in enumerate(stack.frames)]  # fmt: skip
    dump = named.dump._replace(signal=6, stack=stack._replace(frames=tuple(frames)))
    return first_sentence(named._replace(dump=dump))


def test_a_core_names_the_function_that_failed_not_how_the_c_library_raises_the_signal() -> None:
    assert crashed("__pthread_kill_implementation", "raise", "abort", "__assert_fail", "pop", "main") == (
        "process 1 (app) got SIGABRT, in pop <- main"
    ), "a static program"
    assert crashed("abort") == "process 1 (app) got SIGABRT, in abort"
    assert crashed("die", "on_segv", "__restore_rt", "pop", "main", interrupted_at=3) == (
        "process 1 (app) got SIGABRT, in die <- on_segv, a signal handler that interrupted pop <- main"
    )


def waiting_for_child(*children: int) -> ProcessSet:
    call = DecodedSyscall(SyscallInfo(61, (2**64 - 1, 0, 0, 0, 0, 0)), "wait4", ("any child",))
    dump, threads = process(seen(thread("wait4", "|", "main", call=call), 1.0, 2.0))
    return [(dump._replace(children=tuple((pid, "job") for pid in children)), threads)]


def test_a_parent_s_sentence_says_what_its_child_does_and_s_shows_its_stack() -> None:
    alone = judge(waiting_for_child(7)).findings[0].text
    assert alone == "process 1 (app) waits for a child to end: 7 (job) (-s shows what they do), in main"
    dump, threads = process(reading(7, 7))
    followed = judge([*waiting_for_child(7), (dump._replace(followed=True), threads)])
    [finding] = followed.findings
    assert finding.text == (
        "process 1 (app), in main, waits for a child to end: 7 (job); process 7 (app) waits for data in "
        "pipe 9, which is empty (fd 3), in load <- g"
    )
    assert [dump.pid for dump, _ in followed.processes] == [1], "its stack was not asked for"
    several = judge([*waiting_for_child(7, 8), (dump._replace(followed=True), threads)]).findings
    assert ["-s" in finding.text for finding in several] == [True]
    asked = judge([*waiting_for_child(7, 8), *[(dump._replace(pid=pid), ()) for pid in (7, 8)]]).findings
    assert "-s" not in asked[0].text, "their stacks are shown"


@pytest.mark.parametrize(
    ("flags", "end"), [(os.O_RDONLY, "a writer"), (os.O_WRONLY | os.O_CLOEXEC, "a reader")]
)
@pytest.mark.parametrize("function", ["wait_for_partner", "fifo_open"])
def test_open_of_a_fifo_waits_for_its_other_end(flags: int, end: str, function: str) -> None:
    call = DecodedSyscall(SyscallInfo(257, (2**64 - 100, 0x10, flags, 0, 0, 0)), "openat", ("/run/x",))
    one = thread("open", "|", "f", call=call, tid=2)
    one = one._replace(dump=one.dump._replace(wchan=function))
    assert first_sentence(thread("f"), one) == f"thread 2 (app) waits for {end} of FIFO /run/x, in f"
    disk = one._replace(dump=one.dump._replace(wchan="request_wait_answer"))
    assert "FIFO" not in first_sentence(thread("f"), disk)


def test_recursion_is_named_once() -> None:
    rec = ["rec"] * 301
    assert first_sentence(thread("pause", "|", *rec, "main")).endswith("in rec (x 301) <- main")


def test_frames_of_a_recursion_are_one_line_and_json_has_all() -> None:
    deep = thread("f", *["g"] * 3, "main")
    pcs = (1, 2, 3, 3, 3)
    frames = tuple(frame._replace(pc=pc) for frame, pc in zip(deep.dump.stack.frames, pcs, strict=True))
    deep = deep._replace(dump=deep.dump._replace(stack=deep.dump.stack._replace(frames=frames)))
    lines = list(dump_text(judge([process(deep)]), Style(str)))
    assert [line.split()[0] for line in lines if line.startswith("  #")] == ["#0", "#1", "#2"]
    assert lines[-1].endswith(" x 3")
    dump, named = process(deep)
    assert len(dump_json(dump, named, judge([process(deep)]))["threads"][0]["frames"]) == 5


def kinds(runs: tuple[int, int], spans: tuple[tuple[float, float], tuple[float, float]]) -> list[str]:
    """Return the kinds of findings for two threads, each asleep on a mutex that the other holds."""
    (first, second) = (0x5000, 0x6000)
    memory = (words(first, {0: 2, 8: 2}), words(second, {0: 2, 8: 1}))
    pair = [
        seen(thread("pthread_mutex_lock", "f", call=futex(word, WAIT, 2), memory=memory[at], tid=at + 1),
             *spans[at], (5, runs[at]))
        for at, word in enumerate((first, second))
    ]  # fmt: skip
    return [finding.kind for finding in judge([process(*pair)]).findings]


def test_deadlock_needs_all_threads_asleep_at_one_instant() -> None:
    assert kinds((5, 5), ((1.0, 2.0), (1.5, 2.5))) == ["deadlock"]
    assert kinds((5, 5), ((1.0, 2.0), (2.1, 3.0))) != ["deadlock"], "no instant is proven"
    assert "deadlock" not in kinds((5, 6), ((1.0, 2.0), (1.5, 2.5))), "the other ran between the samples"


def test_threads_that_wait_for_one_lock_of_a_dead_thread_are_one_finding() -> None:
    waiters = [thread("pthread_mutex_lock", "f", call=futex(0x5000, WAIT, 2), tid=tid,
                      memory=words(0x5000, {0: 2, 8: 99})) for tid in (2, 3)]  # fmt: skip
    [finding] = judge([process(*waiters, thread(tid=1, state="R"))]).findings[:1]
    assert (finding.kind, [node.tid for node in finding.nodes]) == ("blocked", [2, 3])
    assert finding.text.startswith("2 threads (app): each waits for mutex 0x5000 (held by thread 99, ")


def test_owner_of_a_shared_mutex_may_be_in_another_process() -> None:
    waiter = thread("pthread_mutex_lock", "f", call=futex(0x5000, WAIT & ~128, 2),
                    memory=words(0x5000, {0: 2, 8: 99}))  # fmt: skip
    note = "mutex 0x5000 (held by thread 99, which is in another process, or has ended)"
    assert note in first_sentence(waiter)


def test_after_one_sample_the_cpu_clocks_prove_the_sleep() -> None:
    slept = thread(tid=1).dump._replace(last_ran=LastRunTime(0, 7.0, 50.0))
    assert slept._replace(idle_s=3.0).asleep == (pytest.approx(47.1), 50.0)
    assert slept._replace(idle_s=0.05).asleep is None, "the clocks are not that exact"
    assert slept.asleep is None


def test_threads_with_the_same_stack_form_one_group() -> None:
    threads = [thread("f", "main", tid=tid) for tid in (1, 2, 3)]
    threads += [thread("f", tid=4), thread("f", "main", tid=5, state="R")]
    threads += [thread("f", "main", tid=6, call=futex(0x1000, 0, 0))]
    assert [[member.tid for member in group] for group in group_threads(threads)] == [
        [1, 2, 3],
        [4],
        [5],
        [6],
    ]


def test_unusual_groups_come_first_then_the_largest() -> None:
    threads = [thread(f"f{tid % 4}", *["g"] * (tid % 4), tid=tid) for tid in range(1, 12)]
    usual, stuck = Wait("events", "", is_usual=True), Wait("mutex", "")
    waits = {tid: (stuck if tid % 4 == 2 else usual) for tid in range(1, 12)}
    order = [group[0].tid for group in sort_groups(group_threads(threads), waits, (7,))]
    assert order == [3, 2, 1, 4]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a"], "a"), (["a", "a"], "a"), (["w-1", "w-10", "w-2"], "w-*"), (["bio_close", "bio_aof"], "bio_*"),
        (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b, c, ..."), (["worker", "worker1"], "worker*"),
        (["1", "2"], "1, 2"),
    ],
)  # fmt: skip
def test_common_name_of_threads(names: list[str], expected: str) -> None:
    assert common_name(names) == expected


def test_bare_symbol_has_no_underscores_and_version() -> None:
    assert bare_symbol("___pthread_mutex_lock@@GLIBC_2.2.5") == "pthread_mutex_lock"
    assert bare_symbol("__lll_lock_wait") == "lll_lock_wait"
    assert bare_symbol("__new_sem_wait_slow64.constprop.0") == "new_sem_wait_slow64"


LONG = "Queue<std::map<int, std::vector<long> > >::pop(std::function<void (int)> const&)"


def test_long_names_are_folded_then_cut() -> None:
    assert short_name(LONG) == "Queue::pop"
    assert short_name("operator<(a<b>, c)") == "operator<(a<b>, c)"
    assert fold_name(LONG, None) == fold_name(LONG, len(LONG)) == LONG
    assert fold_name(LONG, 70) == "Queue<...>::pop(std::function<...> const&)"
    assert fold_name(LONG, 20) == "Queue<...>::pop(...)"
    assert fold_name(LONG, 12) == "Queue<...>::pop(...)"[:9] + "..."
    assert short_name("f" * 100) == "f" * 57 + "..."
    assert short_name(f"{LONG}::operator/(int)")[:6] == "Queue<"


def test_the_receiver_of_a_go_method_is_part_of_its_name() -> None:
    method = "example.org/a/quite/long/path/of/a/package.(*Registry).Gather.func1"
    assert short_name("text/template.(*state).walk") == "text/template.(*state).walk"
    assert short_name(method) == fold_name(method, 40) == "package.(*Registry).Gather.func1"
    assert fold_name(method, 30) == "package.(*Registry).Gather...."


@given(st.text(alphabet="<>()ab漢: ", max_size=60), st.integers(8, 40))
def test_folded_names_fit(name: str, room: int) -> None:
    assert columns(fold_name(name, room)) <= room


@given(
    st.lists(st.text(alphabet="abc漢", min_size=1, max_size=8), min_size=1, max_size=30), st.integers(20, 60)
)
def test_sentences_are_wrapped_and_complete(parts: list[str], width: int) -> None:
    lines = _wrap(" ".join(parts), width, "=> ")
    assert all(columns(line) <= width for line in lines)
    assert " ".join(line[3:] for line in lines) == " ".join(parts)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.014, "0.01 s"),
        (0.996, "1.0 s"),
        (12.34, "12.3 s"),
        (119.9, "119.9 s"),
        (600, "10 min"),
        (86400, "24.0 h"),
    ],
)
def test_times_have_a_unit_that_fits(value: float, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.parametrize("wchan", ["__refrigerator", "do_freezer_trap", "get_signal"])
def test_frozen_thread_waits_for_its_cgroup(wchan: str) -> None:
    """It is in state D, but no disk, file server or FUSE daemon is the cause."""
    frozen = thread("nanosleep", "|", "main", state="D")
    frozen = frozen._replace(dump=frozen.dump._replace(wchan=wchan))
    wait = judge([process(frozen)]).waits[Node(1, 1)]
    assert (wait.kind, wait.verb, wait.what) == (
        "stopped",
        "is frozen, and waits for",
        "its cgroup to be thawed",
    )


def test_poll_of_no_descriptors_without_timeout_sleeps_without_a_limit() -> None:
    call = DecodedSyscall(SyscallInfo(7, (0, 0, 2**64 - 1, 0, 0, 0), 0x7000, 0x1000), "poll")
    dumps = [process(seen(thread("poll", "f", call=call), 0.0, 1.0))]
    [finding] = judge(dumps).findings
    assert "sleeps without a limit, in poll <- f" in finding.text


LOOP, TINY = 0x7F00, 0x7F60  # addresses of Python frames


@pytest.mark.parametrize(
    ("looks", "place"),
    [
        (
            ((TINY, 1), (LOOP, 5)),
            "runs in tiny (a.py:1) <- loop",
        ),  # tiny may be a new call of the loop
        (((TINY, 1), (LOOP, 6)), "runs in loop (a.py:1)"),  # its variable or its instruction has changed
        (((LOOP, 6),), "runs in loop (a.py:1)"),  # in one look it was not in tiny
        (((TINY, 1), (0x7E00, 5)), "is busy in tiny (a.py:1) <- loop"),
    ],
)
def test_busy_thread_is_in_the_call_that_may_have_lasted(looks, place):
    named = seen(thread("f", state="R"), 1.0, 2.0, (5, 6))
    places = tuple(PythonPlace(name, "a.py", 1, 1) for name in ("tiny", "loop"))
    calls = [[Call(*call, is_python=True) for call in each] for each in (looks, ((TINY, 1), (LOOP, 5)))]
    usages = SchedStat(0, 0, 5), SchedStat(1_000_000_000, 0, 6)
    named = named._replace(dump=named.dump._replace(
        python=PythonStack(((0, places),), is_whole=True),
        looks=tuple(look._replace(calls=tuple(each), usage=usage)
                    for look, each, usage in zip(named.dump.looks, calls, usages, strict=True))))  # fmt: skip
    [finding] = judge([process(named)]).findings
    assert f"{place}: ran, or was ready to run, 100 % of the time" in finding.text


def test_a_busy_go_program_also_says_how_many_goroutines_it_has() -> None:
    named = seen(thread("main.work", "runtime.goexit", state="R"), 1.0, 2.0, (5, 6))
    looks = [
        look._replace(usage=SchedStat(at * 10**9, 0, at), calls=(Call(1, 0, False), Call(at, 0, False)))
        for at, look in enumerate(named.dump.looks, 1)
    ]
    dump, threads = process(named._replace(dump=named.dump._replace(looks=tuple(looks))))
    group = GoroutineGroup((GoroutineMember(1, None, 0),), "running", 0, (), None, ())
    texts = [finding.text for finding in judge([(dump._replace(goroutines=(group,)), threads)]).findings]
    time = "100 % of the time between 2 looks"
    assert texts == [
        f"process 1 (app) is busy in main.work: ran, or was ready to run, {time}",
        "1 goroutine: 1 running",
    ]


def test_a_thread_that_runs_one_goroutine_after_another_is_busy_in_go_code() -> None:
    named = seen(thread(*["main.work"] * 9, "runtime.goexit", state="R"), 1.0, 2.0, (5, 6))
    looks = [
        look._replace(
            usage=SchedStat(at * 10**9, 0, at), calls=(*[Call(at, 0, False)] * 9, Call(1, 0, False))
        )
        for at, look in enumerate(named.dump.looks, 1)
    ]
    frames = tuple((name._replace(text=f"{name.text} (x.s:1)"),) for (name,) in named.frames)
    named = named._replace(dump=named.dump._replace(looks=tuple(looks)), frames=frames)
    [finding] = judge([process(named)]).findings
    assert "is busy in Go code: " in finding.text


def at_module(path: str, function: str = "f") -> NamedThread:
    one = thread(function)
    return one._replace(dump=one.dump._replace(modules=(_PathModule(path),)))


def test_a_runtime_is_recognised_by_files_and_functions_not_by_its_name() -> None:
    def hint(one: NamedThread, **fields: object) -> str:
        dump, threads = process(one)
        findings = judge([(dump._replace(**fields), threads)]).findings
        return "".join(finding.text for finding in findings if finding.kind == "runtime")

    java = at_module("/opt/jdk/lib/server/libjvm.so")
    assert "jcmd 1 Thread.print" in hint(java)
    assert judge([process(java)]).findings[0].kind == "runtime", "its native threads may wait as they should"
    assert "dotnet-stack report -p 1" in hint(at_module("/usr/share/dotnet/libcoreclr.so"))
    assert "erl -remsh" in hint(at_module("/usr/lib/erlang/erts-13/bin/beam.smp"))
    assert "node inspect -p 1" in hint(at_module("/usr/bin/x", "node::Start(int, char**)"))
    go = at_module("/usr/bin/x", "runtime.mstart")
    assert "ENDS the program" in hint(go)
    group = GoroutineGroup((GoroutineMember(1, None, 0),), "running", 0, (), None, ())
    assert hint(go, goroutines=(group,)) == ""
    assert hint(thread("f", name="java"), name="node", exe="/usr/bin/java") == ""


def test_all_names_of_a_group_are_listed() -> None:
    def members(*names: str) -> list[str]:
        threads = [thread("f", tid=tid, name=name) for tid, name in enumerate(names, 1)]
        lines = list(dump_text(judge([process(*threads)]), Style(str)))
        return lines[lines.index(next(line for line in lines if " threads " in line)) :][1:]

    assert members("GC Thread#0", "VM Thread", "C1", "C2", "x")[0] == (
        "  1 GC Thread#0, 2 VM Thread, 3 C1, 4 C2, 5 x"
    )
    assert members(*["a"] * 3)[0] == "  1 2 3"
    numbered = members(*(f"w-{at}" for at in range(20)))
    assert numbered[0].startswith("  1 w-0, 2 w-1, ")
    assert "and 8 more" in " ".join(" ".join(numbered).split())
    many = members(*(f"{letter}-{letter}" for letter in "abcdefghijklmnopq"))
    assert "17 q-q" in " ".join(many)


def test_connections_of_an_event_loop_are_listed() -> None:
    epoll = Descriptor(3, "epoll", 0, "rw", "9 fds", tuple(range(4, 13)))
    peers = tuple(Descriptor(fd, "socket", fd, "rw", f"tcp 1.2.3.4:80 -> 5.6.7.8:{fd}") for fd in (4, 5))
    call = DecodedSyscall(SyscallInfo(232, (3, 0, 0, 0, 0, 0)), "epoll_wait", ("3 <9 fds>",), (epoll,))
    dump, threads = process(thread("epoll_wait", call=call._replace(connections=peers)))
    assert not any("--connections" in line for line in dump_text(judge([(dump, threads)]), Style(str)))
    call = call._replace(connections=peers, has_more_connections=True)
    dump, threads = process(seen(thread("epoll_wait", call=call), 1.0, 2.0))
    lines = [*dump_text(judge([(dump, threads)]), Style(str))]
    at = lines.index("  fd 4: tcp 1.2.3.4:80 -> 5.6.7.8:4")
    assert lines[at + 1 : at + 3] == [
        "  fd 5: tcp 1.2.3.4:80 -> 5.6.7.8:5",
        "  ... (--connections N lists more)",
    ]
    syscall = dump_json(dump, threads, judge([(dump, threads)]))["threads"][0]["syscall"]
    assert [found["fd"] for found in syscall["connections"]] == [4, 5]


def test_a_process_without_its_main_thread_has_a_sentence() -> None:
    workers = [seen(thread("pause", "|", "work", tid=tid, name="w"), 1.0, 2.0) for tid in (2, 3)]
    assert first_sentence(*workers) == "the main thread has ended; thread 2 (w) sleeps, in work"


def test_a_child_in_the_sentence_of_its_parent_has_no_sentence_of_its_own() -> None:
    child, its_threads = process(reading(7, 7))
    findings = judge([*waiting_for_child(7), (child, its_threads)]).findings
    assert len(findings) == 1
    assert [tuple(node) for node in findings[0].nodes] == [(7, 7), (1, 1)]


def test_findings_stand_above_several_processes() -> None:
    first, second = process(thread("f")), process(thread("g", pid=2, tid=2))
    lines = [*dump_text(judge([first, second]), Style(str))]
    assert [line.partition(" ")[0] for line in lines[:4]] == ["=>", "=>", "", "process"]
    assert next(dump_text(judge([first]), Style(str))).startswith("process 1")


def test_a_shell_that_waits_for_a_signal_has_its_children_named_and_is_in_no_deadlock() -> None:
    call = DecodedSyscall(SyscallInfo(130, (0, 8, 0, 0, 0, 0)), "rt_sigsuspend")
    dump, threads = process(seen(thread("sigsuspend", "|", call=call), 1.0, 2.0))
    alone = judge([(dump, threads)]).findings[0].text
    assert alone == "process 1 (app) waits for a signal"
    parent = (dump._replace(children=((7, "job"),)), threads)
    text = "process 1 (app) waits for a signal, such as the end of a child: 7 (job)"
    assert judge([parent]).findings[0].text == f"{text} (-s shows what they do)"
    peer = PeerProcess(1, NearEnd(9), "w")
    child, its_threads = process(reading(7, 7))
    findings = judge([parent, (child._replace(peers=(peer,)), its_threads)]).findings
    assert [finding.kind for finding in findings] == ["main", "main"], "any process may send the signal"
    assert findings[0].text == text
