"""Who waits for whom, which threads are alike, and what it is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.dumping.diagnose.groups import common_name, group, in_order
from sfsample.dumping.diagnose.named_thread import bare, fold, short
from sfsample.dumping.diagnose.verdict import judge
from sfsample.dumping.diagnose.wait import Wait
from sfsample.dumping.diagnose.wait_graph import Node, cycles, holders, of_processes, stuck
from sfsample.dumping.diagnose.wording import seconds
from sfsample.dumping.text import wrap
from sfsample.process.facts.syscall_arguments import Call
from sfsample.process.facts.thread_facts import LastRan, Syscall
from tests.builders.hang_builder import WAIT, futex, process, seen, thread, words


def n(tid: int, pid: int = 1) -> Node:
    return Node(pid, tid)


def test_cycles_are_found_once_from_their_smallest_member() -> None:
    edges = {n(3): n(2), n(2): n(3), n(4): n(2), n(6): n(5), n(5): n(7), n(7): n(6), n(9): n(9), n(10): n(11)}
    assert cycles(edges) == ((n(2), n(3)), (n(5), n(7), n(6)), (n(9),))
    assert cycles({}) == ()


def test_holders_have_those_that_wait_behind_others_too() -> None:
    assert holders({n(1): n(2), n(2): n(3), n(4): n(3)}) == {n(3): (n(1), n(2), n(4))}
    assert holders({n(1): n(2), n(2): n(1), n(3): n(1)}) == {}, "all of them end in a cycle"


@given(st.dictionaries(st.integers(0, 12), st.integers(0, 12)))
def test_every_waiting_node_ends_in_a_cycle_or_behind_a_holder(raw: dict[int, int]) -> None:
    edges = {n(a): n(b) for a, b in raw.items()}
    cyclic = {node for cycle in cycles(edges) for node in cycle}
    behind = {node: end for end, nodes in holders(edges).items() for node in nodes}
    for node in edges:
        seen = [node]
        while seen[-1] in edges and edges[seen[-1]] not in seen:
            seen.append(edges[seen[-1]])
        ends_in_cycle = seen[-1] in edges
        assert ends_in_cycle == (node not in behind)
        assert ends_in_cycle == (seen[-1] in cyclic)
    for cycle in cycles(edges):
        assert all(edges[a] == b for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True))


def test_a_process_waits_when_each_of_its_threads_does() -> None:
    other = n(0, pid=2)
    edges = of_processes({n(1): other, n(2): n(1), n(3, pid=2): n(0)})
    assert edges[n(0)] == n(1)
    assert edges[other] == n(3, pid=2)
    assert len(cycles(edges)) == 1
    assert cycles(of_processes({n(1): other, n(2): None, n(3, pid=2): n(0)})) == (), "a thread is free to act"


def test_a_process_is_stuck_when_nobody_that_its_threads_wait_for_can_go_on() -> None:
    """One thread waits for a process that waits for us, the other for one that only works a lot."""
    us, them, busy = n(0), n(0, pid=2), n(9, pid=3)
    edges = of_processes({n(1): them, n(2): busy, n(3, pid=2): us, busy: None})
    assert len(cycles(edges)) == 1, "by the first of our threads"
    assert stuck(edges) == set()
    assert stuck(of_processes({n(1): them, n(2): them, n(3, pid=2): us})) == {
        n(1),
        n(2),
        n(3, pid=2),
        us,
        them,
    }


def mutexes(turns: tuple[int, int], spans: tuple[tuple[float, float], tuple[float, float]]) -> list[str]:
    """Two threads, each asleep on a mutex that the other has; kinds of the findings."""
    (there, back) = (0x5000, 0x6000)
    memory = (words(there, {0: 2, 8: 2}), words(back, {0: 2, 8: 1}))
    pair = [
        seen(thread("pthread_mutex_lock", "f", call=futex(word, WAIT, 2), memory=memory[at], tid=at + 1),
             *spans[at], (5, turns[at]))
        for at, word in enumerate((there, back))
    ]  # fmt: skip
    return [finding.kind for finding in judge([process(*pair)]).findings]


def test_a_deadlock_needs_that_all_slept_at_one_instant() -> None:
    assert mutexes((5, 5), ((1.0, 2.0), (1.5, 2.5))) == ["deadlock"]
    assert mutexes((5, 5), ((1.0, 2.0), (2.1, 3.0))) != ["deadlock"], "not known of any instant"
    assert "deadlock" not in mutexes((5, 6), ((1.0, 2.0), (1.5, 2.5))), "the other ran between the looks"


def test_after_one_look_the_clocks_of_the_processors_must_do() -> None:
    slept = thread(tid=1).dump._replace(last_ran=LastRan(0, 7.0, 50.0))
    assert slept._replace(idle_s=3.0).asleep == (pytest.approx(47.1), 50.0)
    assert slept._replace(idle_s=0.05).asleep is None, "they are not that exact"
    assert slept.asleep is None


def test_threads_with_the_same_stack_are_one_group() -> None:
    threads = [thread("f", "main", tid=tid) for tid in (1, 2, 3)]
    threads += [thread("f", tid=4), thread("f", "main", tid=5, state="R")]
    threads += [thread("f", "main", tid=6, call=futex(0x1000, 0, 0))]
    assert [[one.tid for one in found.threads] for found in group(threads)] == [[1, 2, 3], [4], [5], [6]]


def test_the_unusual_comes_first_then_the_largest_group() -> None:
    threads = [thread(f"f{tid % 4}", *["g"] * (tid % 4), tid=tid) for tid in range(1, 12)]
    idle, stuck = Wait("events", "", idle=True), Wait("mutex", "")
    waits = {tid: (stuck if tid % 4 == 2 else idle) for tid in range(1, 12)}
    order = [found.first.tid for found in in_order(group(threads), waits, (7,))]
    assert order == [3, 2, 1, 4]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a"], "a"), (["a", "a"], "a"), (["w-1", "w-10", "w-2"], "w-*"), (["bio_close", "bio_aof"], "bio_*"),
        (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b, c, ..."), (["worker", "worker1"], "worker*"),
        (["1", "2"], "1, 2"),
    ],
)  # fmt: skip
def test_names_that_threads_share(names: list[str], expected: str) -> None:
    assert common_name(names) == expected


def test_symbols_without_decoration() -> None:
    assert bare("___pthread_mutex_lock@@GLIBC_2.2.5") == "pthread_mutex_lock"
    assert bare("__lll_lock_wait") == "lll_lock_wait"


LONG = "Queue<std::map<int, std::vector<long> > >::pop(std::function<void (int)> const&)"


def test_long_names_are_folded_then_cut() -> None:
    assert short(LONG) == "Queue::pop"
    assert short("operator<(a<b>, c)") == "operator<(a<b>, c)"
    assert fold(LONG, None) == fold(LONG, len(LONG)) == LONG
    assert fold(LONG, 70) == "Queue<...>::pop(std::function<...> const&)"
    assert fold(LONG, 20) == "Queue<...>::pop(...)"
    assert fold(LONG, 12) == "Queue<...>::pop(...)"[:9] + "..."
    assert short("f" * 100) == "f" * 57 + "..."


@given(st.text(alphabet="<>()ab: ", max_size=60), st.integers(8, 40))
def test_folding_always_fits(name: str, room: int) -> None:
    assert len(fold(name, room)) <= room or len(name) <= room


@given(
    st.lists(st.text(alphabet="abc", min_size=1, max_size=12), min_size=1, max_size=30), st.integers(20, 60)
)
def test_sentences_are_wrapped_and_complete(parts: list[str], width: int) -> None:
    lines = list(wrap(" ".join(parts), width, "=> ", "   "))
    assert all(len(line) <= width for line in lines)
    assert " ".join(line[3:] for line in lines) == " ".join(parts)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.014, "0.01 s"), (12.34, "12.3 s"), (119.9, "119.9 s"), (600, "10 min"), (86400, "24.0 h")],
)
def test_times(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize("where", ["__refrigerator", "do_freezer_trap", "get_signal"])
def test_a_frozen_thread_waits_for_nothing_else(where: str) -> None:
    """In state D, but no disk, file server or FUSE daemon is behind it."""
    one = thread("nanosleep", "|", "main", state="D")
    one = one._replace(dump=one.dump._replace(wchan=where))
    wait = judge([process(one)]).waits[Node(1, 1)]
    assert (wait.kind, wait.verb, wait.what) == (
        "stopped",
        "is frozen, and waits for",
        "its cgroup to be thawed",
    )


def test_a_poll_of_nothing_without_an_end_says_so() -> None:
    call = Call(Syscall(7, (0, 0, 2**64 - 1, 0, 0, 0), 0x7000, 0x1000), "poll")
    dumps = [process(seen(thread("poll", "f", call=call), 0.0, 1.0))]
    [finding] = judge(dumps).findings
    assert "sleeps without a limit, in poll <- f" in finding.text
