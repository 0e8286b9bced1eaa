"""Which threads wait for which, which form a group, and how a verdict names them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.core.printable import columns
from sfsample.dumping.diagnose.named_thread import fold_name, group_threads, short_name
from sfsample.dumping.diagnose.verdict import judge
from sfsample.dumping.diagnose.wait_graph import (
    Node,
    blockers,
    cycles,
    mutual,
    stuck,
    with_process_edges,
)
from sfsample.dumping.diagnose.wording import common_name, format_seconds
from sfsample.dumping.model import Call
from sfsample.dumping.text import _wrap, sort_groups
from sfsample.modules.location import PythonPlace
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.facts.thread_facts import LastRunTime
from sfsample.process.proc_text import SchedStat, SyscallInfo
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.waiting.c_library import bare_symbol
from sfsample.waiting.waits import Wait
from tests.builders.hang_builder import WAIT, futex, process, seen, thread, words


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
    edges = with_process_edges({n(1): other, n(2): n(1), n(3, pid=2): n(0)})
    assert edges[n(0)] == n(1)
    assert edges[other] == n(3, pid=2)
    assert len(cycles(edges)) == 1
    assert cycles(with_process_edges({n(1): other, n(2): None, n(3, pid=2): n(0)})) == (), (
        "a thread is free to act"
    )


def test_process_is_stuck_when_no_thread_that_it_waits_for_can_go_on() -> None:
    """One thread waits for process 2, which waits for process 1; the other waits for a busy thread."""
    first, second, busy = n(0), n(0, pid=2), n(9, pid=3)
    edges = with_process_edges({n(1): second, n(2): busy, n(3, pid=2): first, busy: None})
    assert len(cycles(edges)) == 1, "by the first thread"
    assert stuck(edges) == set()
    edges = with_process_edges({n(1): second, n(2): second, n(3, pid=2): first})
    assert stuck(edges) == {n(1), n(2), n(3, pid=2), first, second}


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
    idle, stuck = Wait("events", "", idle=True), Wait("mutex", "")
    waits = {tid: (stuck if tid % 4 == 2 else idle) for tid in range(1, 12)}
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
    [(0.014, "0.01 s"), (12.34, "12.3 s"), (119.9, "119.9 s"), (600, "10 min"), (86400, "24.0 h")],
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
        (((TINY, 1), (LOOP, 5)), "runs in tiny <- loop"),  # the loop has no trace: tiny may be another call
        (((TINY, 1), (LOOP, 6)), "runs in loop"),  # its variable or its instruction has changed
        (((LOOP, 6),), "runs in loop"),  # in one look it was not in tiny
        (((TINY, 1), (0x7E00, 5)), "is busy in tiny <- loop"),
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
    assert f"{place}: ran, or was ready to run, 100% of the time" in finding.text
