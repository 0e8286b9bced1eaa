"""The lines of `top`: shares, sorting, callers, threads, waits, search; they always fit the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.cli.top.view import KEYS, TopView
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location, WaitPlace
from sfsample.recording.profile import LiveWindow
from sfsample.recording.sample import ThreadKey
from sfsample.symbolize.named_frame import NamedFrame
from tests.builders.samples import sample

LOCATIONS = {
    name: Location(None, at, at)
    for at, name in enumerate(("main", "get", "hash", "put", "\x1b[2Jevil", "漢字"))
}
NAMES = {location: [NamedFrame(name, module="/usr/lib/lib.so")] for name, location in LOCATIONS.items()}
# the name of the frame, its kind, the class of the wait, and how it was found
WAITS = {
    "[wait]": ("[mutex a]", "w", "lock", "wait"),
    "[mutex]": ("[mutex]", "w", "lock", "wait"),
    "[sleep]": ("[sleep]", "w", "sleep", "wait"),
    "[epoll]": ("[epoll_wait]", "w", "event", "idle"),
    "[held]": ("[held by]writer\x1b[31m", "", None, ""),
    "[task]": ("[task x]", "p", None, ""),
}
for at, (key, (text, kind, of_class, found)) in enumerate(WAITS.items(), 100):
    place = WaitPlace(text, of_class or "")
    LOCATIONS[key] = location = Location(None, at, at, found=found, wait=place)
    NAMES[location] = [NamedFrame(text, raw=of_class, kind=kind, found=found)]
THREADS = {ThreadKey(1, 1): "main", ThreadKey(1, 2): "work\x1b[31m", ThreadKey(1, 3): "third"}


def window(*samples: tuple[int, str, int]) -> LiveWindow:
    """Return a window of samples (tid, root-first names, how many), 10 ms apart."""
    made = LiveWindow(100, 5)
    made.profile.processes = {1: "p"}
    at = 0
    for tid, names, times in samples:
        for _ in range(times):
            at += 10_000_000
            locations = [LOCATIONS[name] for name in reversed(names.split(";"))]
            reason = StopReason.NO_ROW if names.startswith("put") else StopReason.OUTERMOST
            thread, period_ns = ThreadKey(1, tid), 10_000_000
            made.profile.add(sample(thread, locations, Stack((), reason), name=THREADS[thread],
                            at_ns=at, wall_ns=period_ns, cpu_ns=period_ns))  # fmt: skip
    return made


BUSY = window((1, "main;get;hash", 6), (2, "main;put", 3), (2, "put", 1))


def top(made: LiveWindow = BUSY, *keys: str) -> TopView:
    """Return the view of a window after some keys."""
    view = TopView("p 1")
    update(view, made)
    for key in keys:
        view.key(key)
        update(view, made)
    return view


def update(view: TopView, made: LiveWindow) -> None:
    view.update(made.last(10**9), NAMES.__getitem__, made.profile, 10**9)


def screen(view: TopView, width: int = 80, height: int = 24, mode: str | None = None) -> list[str]:
    BUSY.profile.stats.mode = mode
    return [line.text for line in view.screen(width, height, BUSY.profile.stats, 0.01, 5)]


def test_functions_are_sorted_by_own_samples():
    assert [row.split()[:5] for row in screen(top())[4:8]] == [
        ["60.0", "%", "60.0", "%", "hash"],
        ["40.0", "%", "40.0", "%", "put"],
        ["0.0", "%", "90.0", "%", "main"],
        ["0.0", "%", "60.0", "%", "get"],
    ]


def test_s_sorts_functions_by_total():
    assert [row.name for row in top(BUSY, "s").rows] == ["main", "hash", "get", "put"]


def test_c_shows_callers_of_the_selected_function():
    view = top(BUSY, "down", "c")
    assert [(row.name, row.first) for row in view.rows] == [("main", 3)]
    assert "CALLERS OF put" in screen(view)[3]
    assert top(BUSY, "down", "c", "escape").callers_of is None


def test_enter_shows_functions_of_the_selected_thread():
    view = top(BUSY, "t")
    assert [(row.where, row.first) for row in view.rows] == [("1", 6), ("2", 4)]
    view = top(BUSY, "t", "down", "enter")
    assert [(row.name, row.first) for row in view.rows] == [("put", 4), ("main", 0)]
    assert "thread 2" in screen(view)[3]


def test_cpu_time_of_a_thread_is_a_share_of_the_window():
    view = top(window((1, "main", 40), (2, "main", 30)), "t")
    assert [row.split() for row in screen(view)[4:6]] == [
        ["57.1", "%", "40.0", "%", "1", "main"],
        ["42.9", "%", "30.0", "%", "2", "work?[31m"],
    ]
    assert "SHARE*     CPU " in screen(view)[3]
    view.key("s")
    assert "SHARE      CPU*" in screen(view)[3]


def test_threads_have_their_last_wait():
    view = top(window((1, "main;[wait]", 1), (1, "main", 1), (2, "main", 1), (2, "main;put;[wait]", 1)), "t")
    assert {row.where: row.wait for row in view.rows} == {"1": "", "2": "[mutex a]"}
    assert screen(view)[3].endswith("TID  THREAD           WAITS FOR")
    assert any(line.endswith("work?[31m        [mutex a]") for line in screen(view))
    assert screen(top(BUSY, "t"))[3].endswith("THREAD")


def test_c_shows_functions_of_the_selected_process():
    view = top(BUSY, "t", "t")
    assert [(row.name, row.where, row.first) for row in view.rows] == [("p", "1", 10)]
    assert " PID  PROCESS" in screen(view)[3]
    assert "(process 1)" in screen(top(BUSY, "t", "t", "c"))[3]
    assert top(BUSY, "t", "t", "t").view == "functions"


WAITING = window(
    (1, "main;get;[wait];[held];put;[sleep]", 30), (1, "main;hash;[wait];[held];main", 10),
    (2, "main;hash;[wait]", 10), (2, "main;hash;[mutex]", 20), (3, "[sleep]", 10), (3, "main;[epoll]", 20),
)  # fmt: skip


def test_w_shows_what_threads_wait_for_and_who_holds_it_up():
    view = top(WAITING, "w")
    assert screen(view)[3:9] == [
        "waiting   80.0 % of the threads' time: lock 70.0 %, sleep 10.0 %",
        "   TIME*   SHARE AT ONCE   THREADS WAIT FOR  (--blame shows holders)",
        "  0.50 s  50.0 %       1   [mutex a]",
        "    80 % of it held by writer?[31m, in put [sleep], and others",
        "  0.20 s  20.0 %       1   [mutex] in hash",
        "",
    ]
    blaming = TopView("p 1", blame=True)
    blaming.key("w")
    update(blaming, WAITING)
    assert screen(blaming)[4].endswith("THREADS WAIT FOR")
    assert top(WAITING, "w", "t").view == "threads"
    assert [row.name for row in top(WAITING, "w", "/", "w", "r", "i").rows] == ["[mutex a]"], "the holder"


def test_functions_of_holders_are_no_functions_of_the_waiting_thread():
    assert [(row.name, row.first, row.second) for row in top(WAITING).rows] == [
        ("[mutex a]", 50, 50), ("[epoll_wait]", 20, 20), ("[mutex]", 20, 20), ("[sleep]", 10, 10),
        ("main", 0, 90), ("hash", 0, 40), ("get", 0, 30),
    ]  # fmt: skip


def test_most_waiters_at_once():
    made, stack = LiveWindow(100, 5), Stack((), StopReason.OUTERMOST)
    rows = [(1, 0, 10, "main;[wait]"), (1, 10, 20, "main;[wait]"), (2, 0, 10, "main;[wait]")]
    rows += [(3, 10, 20, "main;[wait]"), (1, 30, 90, "main;hash;[mutex]"), (2, 80, 90, "main;hash;[mutex]")]
    rows += [(3, 30, 40, "[task];main;get;[mutex]"), (3, 30, 60, "[task];main;put;[mutex]")]
    for tid, begin_ns, end_ns, names in rows:
        places, ns = [LOCATIONS[name] for name in reversed(names.split(";"))], end_ns - begin_ns
        made.profile.add(sample(ThreadKey(1, tid), places, stack, at_ns=end_ns, wall_ns=ns, times=ns // 10))
    view = top(made, "w", "s")
    assert [(row.name, row.second) for row in view.rows] == [
        ("[mutex] in hash", 2), ("[mutex a]", 2), ("[mutex] in put", 0), ("[mutex] in get", 0)
    ], "a wait ends when the next begins; tasks do not count"  # fmt: skip
    assert screen(view)[8].endswith(" %       -   [mutex] in get")


def test_enter_shows_the_functions_that_wait_for_a_lock():
    view = top(WAITING, "w", "enter")
    assert [(row.name, row.first, row.second) for row in view.rows] == [
        ("[mutex a]", 50, 50), ("main", 0, 50), ("get", 0, 30), ("hash", 0, 20)
    ]  # fmt: skip
    assert screen(view)[3] == "  OWN *   TOTAL    FUNCTION  (waits for [mutex a])"
    view = top(WAITING, "w", "enter", "enter")
    assert [(row.name, row.first) for row in view.rows] == [("get", 30), ("hash", 20), ("main", 0)]
    assert screen(view)[3] == "  CALL*   TOTAL    CALLERS OF [mutex a]  (waits for [mutex a])"
    assert top(WAITING, "w", "enter", "enter", "escape").rows == top(WAITING, "w", "enter").rows
    assert top(WAITING, "w", "enter", "escape").view == "waits"
    assert top(WAITING, "w", "enter", "escape", "escape").view == "functions"
    assert top(WAITING, "w", "enter", "t").lock is None


def test_waits_of_one_thread():
    view = top(WAITING, "t", "down", "down", "enter", "w")
    assert [row.name for row in view.rows] == ["[mutex] in hash", "[mutex a]"]
    assert "(thread 2)" in screen(view)[4]


def test_empty_table_of_waits_says_why():
    assert screen(top(WAITING, "w"), mode="wall")[5].startswith("  0.50 s")
    assert screen(top(BUSY, "w"), mode="wall")[4] == "no thread waits for another thread"
    assert screen(top(BUSY, "w"), mode="cpu")[4] == (
        "waits are seen in wall mode: sfsample top --mode wall PID"
    )
    assert screen(top(window(), "w"), mode="wall")[4] == "no samples"
    view = top(WAITING, "w", "enter")
    update(view, BUSY)
    assert screen(view, mode="wall")[4] == "no thread waits for [mutex a]"


def test_each_lock_is_on_the_screen_with_its_holder():
    locks = {Location(None, at, at, wait=WaitPlace("m", "lock")): f"[mutex m{at}]" for at in range(200, 240)}
    made = LiveWindow(100, 5)
    for location, name in locks.items():
        NAMES[location] = [NamedFrame(name, raw="lock", kind="w", found="wait")]
        places = [LOCATIONS["put"], LOCATIONS["[held]"], location, LOCATIONS["main"]]
        made.profile.add(sample(ThreadKey(1, 1), places, Stack((), StopReason.OUTERMOST), wall_ns=10))
    view = top(made, "w")
    for at, name in enumerate(locks.values()):
        lines = view.screen(60, 10, BUSY.profile.stats, 0.01, 5)
        lock, holder = (line.text for line in lines if line.style == "selected")
        assert lock.endswith(name), at
        assert holder.strip().startswith("100 % of it held by writer")
        assert len(lines) == 10
        view.key("down")


def test_search_filters_names_and_escape_ends_it():
    assert [row.name for row in top(BUSY, "/", "h", "a").rows] == ["hash"]
    assert [row.name for row in top(BUSY, "/", "h", "x", "backspace", "enter").rows] == ["hash"]
    assert len(top(BUSY, "/", "h", "escape").rows) == 4
    assert top(BUSY, "/", "t").view == "functions"  # a letter of the word, not a key


def test_search_without_a_hit_says_so():
    assert screen(top(BUSY, "/", "z", "enter"))[4] == "no match for 'z': Escape ends the search"
    assert screen(top(window(), "/", "z"))[4].startswith("no samples")


def test_outermost_function_has_no_callers():
    view = top(window((1, "main", 1)), "c")
    assert screen(view)[4] == "main has no callers: it is the outermost function"


def test_head_shows_the_cpu_time_of_the_target():
    made = window((1, "main", 40), (2, "main", 30))
    assert screen(top(made))[1].startswith("CPU 70.0 %  sampler 1.0 % of a CPU  pause none")
    assert screen(top(made, "t", "down", "enter"))[1].startswith("CPU 70.0 % ")  # of all threads


def test_p_freezes_the_table():
    made = window((1, "main", 3))
    view = top(made, "p")
    made.profile.add(
        sample(ThreadKey(1, 1), [LOCATIONS["get"]], Stack((), StopReason.OUTERMOST), at_ns=10**8)
    )
    update(view, made)
    assert [row.name for row in view.rows] == ["main"]
    assert screen(view)[0].startswith("sfsample top  PAUSED  p 1  3 samples")


def test_paused_view_shows_other_tables_of_the_same_samples():
    view = top(BUSY, "p")
    update(view, window((1, "main", 1)))
    view.key("t")
    update(view, window((1, "main", 1)))
    assert [(row.where, row.first) for row in view.rows] == [("1", 6), ("2", 4)]
    view.key("p")
    update(view, window((1, "main", 1)))
    assert [(row.where, row.first) for row in view.rows] == [("1", 1)]


def test_names_of_the_keys_fit_80_columns():
    assert len(KEYS) <= 80


def test_head_shows_losses():
    assert screen(top())[2] == "truncated 10.0 %  missed 0 of 0 ticks"


def test_names_of_the_target_are_made_printable():
    view = top(window((2, "main;\x1b[2Jevil", 2)))
    assert "\x1b" not in "".join(screen(view))
    assert "?[2Jevil" in screen(view)[4]
    view.key("t")
    other = window((2, "main", 1))
    update(view, other)
    assert "work?[31m" in screen(view)[4]


@given(st.integers(0, 200), st.integers(0, 60), st.lists(st.sampled_from("tscpw/ax"), max_size=6))
def test_screen_always_fits(width, height, keys):
    made = window((1, "main;漢字", 3), (1, "get", 2), (2, "漢字;[mutex];[held];漢字", 3))
    lines = screen(top(made, *keys), width, height)
    assert len(lines) <= height
    for line in lines:
        assert sum(2 if letter in "漢字" else 1 for letter in line) <= width


@pytest.mark.parametrize("keys", [["c"], ["enter"], ["down"], ["t"], ["t", "enter"], ["page down"], ["w"]])
def test_empty_window_shows_no_samples(keys):
    assert screen(top(window(), *keys))[4].startswith("no samples")


def test_window_drops_old_samples():
    made = LiveWindow(100, 1)
    for second in range(5):
        stack = Stack((), StopReason.OUTERMOST)
        made.profile.add(
            sample(ThreadKey(1, 1), [LOCATIONS["main"]], stack, at_ns=second * 10**9, wall_ns=7, cpu_ns=3)
        )
    assert len(made.last(4 * 10**9)) == 2
    assert made.last(9 * 10**9) == []
    assert made.profile.stats.samples == 5
