"""The lines of `top`: shares, sorting, callers, threads, search, and a screen that always fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.cli.top.choices import HELP, KEYS
from sfsample.cli.top.view import Top
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location
from sfsample.recording.live_window import LiveWindow, as_profile
from sfsample.recording.sample import ThreadKey
from tests.builders.samples import sample

PLACES = {
    name: Location(None, at, at)
    for at, name in enumerate(("main", "get", "hash", "put", "\x1b[2Jevil", "漢字"))
}
NAMES = {place: [(name, "lib.so")] for name, place in PLACES.items()}
THREADS = {ThreadKey(1, 1): "main", ThreadKey(1, 2): "work\x1b[31m"}


def window(*samples: tuple[int, str, int]) -> LiveWindow:
    """Return a window of (tid, root-first names, how often), one sample each 10 ms."""
    made = LiveWindow(100, 5)
    made.processes = {1: "p"}
    at = 0
    for tid, names, times in samples:
        for _ in range(times):
            at += 10_000_000
            places = [PLACES[name] for name in reversed(names.split(";"))]
            reason = StopReason.NO_ROW if names.startswith("put") else StopReason.OUTERMOST
            thread, lasted_ns = ThreadKey(1, tid), 10_000_000
            made.add(sample(thread, places, Stack((), reason), name=THREADS[thread],
                            at_ns=at, wall_ns=lasted_ns, cpu_ns=lasted_ns))  # fmt: skip
    return made


BUSY = window((1, "main;get;hash", 6), (2, "main;put", 3), (2, "put", 1))


def top(made: LiveWindow = BUSY, *keys: str) -> Top:
    shown = Top("p 1")

    def look() -> None:
        shown.update(made.last(10**9), NAMES.__getitem__, made, 10**9)

    look()
    for key in keys:
        shown.key(key)
        look()
    return shown


def screen(shown: Top, width: int = 80, height: int = 24) -> list[str]:
    return [line.text for line in shown.screen(width, height, BUSY.stats, 0.01, 5)]


def test_functions_by_their_own_time():
    assert [row.split()[:5] for row in screen(top())[4:8]] == [
        ["60.0", "%", "60.0", "%", "hash"],
        ["40.0", "%", "40.0", "%", "put"],
        ["0.0", "%", "90.0", "%", "main"],
        ["0.0", "%", "60.0", "%", "get"],
    ]


def test_by_time_with_what_they_call():
    assert [row.name for row in top(BUSY, "s").table.rows] == ["main", "hash", "get", "put"]


def test_callers_of_the_chosen_function():
    shown = top(BUSY, "down", "c")
    assert [(row.name, row.first) for row in shown.table.rows] == [("main", 3)]
    assert "CALLERS OF put" in screen(shown)[3]
    assert top(BUSY, "down", "c", "escape").choices.callers_of is None


def test_threads_and_one_of_them():
    shown = top(BUSY, "t")
    assert [(row.where, row.first) for row in shown.table.rows] == [("1", 6), ("2", 4)]
    shown = top(BUSY, "t", "down", "enter")
    assert [(row.name, row.first) for row in shown.table.rows] == [("put", 4), ("main", 0)]
    assert "thread 2" in screen(shown)[3]


def test_cpu_time_is_a_share_of_the_window():
    shown = top(window((1, "main", 40), (2, "main", 30)), "t")
    assert [row.split() for row in screen(shown)[4:6]] == [
        ["57.1", "%", "40.0", "%", "1", "main"],
        ["42.9", "%", "30.0", "%", "2", "work?[31m"],
    ]
    assert "SHARE*     CPU " in screen(shown)[3]
    shown.key("s")
    assert "SHARE      CPU*" in screen(shown)[3]


def test_processes_and_one_of_them():
    shown = top(BUSY, "t", "t")
    assert [(row.name, row.where, row.first) for row in shown.table.rows] == [("p", "1", 10)]
    assert " PID  PROCESS" in screen(shown)[3]
    assert "(process 1)" in screen(top(BUSY, "t", "t", "c"))[3]
    assert top(BUSY, "t", "t", "t").choices.view == "functions"


def test_search_narrows_and_escape_ends_it():
    assert [row.name for row in top(BUSY, "/", "h", "a").table.rows] == ["hash"]
    assert [row.name for row in top(BUSY, "/", "h", "x", "backspace", "enter").table.rows] == ["hash"]
    assert len(top(BUSY, "/", "h", "escape").table.rows) == 4
    assert top(BUSY, "/", "t").choices.view == "functions"  # a letter of the word, not a key


def test_held_the_picture_stays():
    made = window((1, "main", 3))
    shown = top(made, "p")
    made.add(sample(ThreadKey(1, 1), [PLACES["get"]], Stack((), StopReason.OUTERMOST), at_ns=10**8))
    shown.update(made.last(10**9), NAMES.__getitem__, made, 10**9)
    assert [row.name for row in shown.table.rows] == ["main"]
    assert "HELD" in screen(shown)[0]


def test_the_keys_are_readable_on_a_small_terminal():
    assert all(len(line) <= 80 for line in (*HELP, KEYS))


def test_losses_are_shown():
    assert screen(top())[2] == "truncated 10.0 %  missed 0 of 0 ticks"


def test_nothing_from_the_target_reaches_the_terminal():
    shown = top(window((2, "main;\x1b[2Jevil", 2)))
    assert "\x1b" not in "".join(screen(shown))
    assert "?[2Jevil" in screen(shown)[4]
    shown.key("t")
    other = window((2, "main", 1))
    shown.update(other.last(10**9), NAMES.__getitem__, other, 10**9)
    assert "work?[31m" in screen(shown)[4]


@given(st.integers(0, 200), st.integers(0, 60), st.lists(st.sampled_from("tscp?/ax"), max_size=6))
def test_the_screen_always_fits(width, height, keys):
    lines = screen(top(window((1, "main;漢字", 3), (1, "get", 2)), *keys), width, height)
    assert len(lines) <= height
    for line in lines:
        assert sum(2 if letter in "漢字" else 1 for letter in line) <= width


@pytest.mark.parametrize("keys", [["c"], ["enter"], ["down"], ["t"], ["t", "enter"], ["page down"]])
def test_nothing_to_show_is_shown(keys):
    assert screen(top(window(), *keys))[4].startswith("no samples")


def test_a_window_forgets():
    made = LiveWindow(100, 1)
    for second in range(5):
        stack = Stack((), StopReason.OUTERMOST)
        made.add(sample(ThreadKey(1, 1), [PLACES["main"]], stack, at_ns=second * 10**9, wall_ns=7, cpu_ns=3))
    assert len(made.last(4 * 10**9)) == 2
    assert made.last(9 * 10**9) == []
    assert made.stats.samples == 5
    profile = as_profile(made, made.last(4 * 10**9))
    assert sum(profile.counts.values()) == 2
    assert sum(profile.wall_ns.values()) == 14
