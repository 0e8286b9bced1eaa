"""The time line of the page: the flame graph shows the time that the user drags over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sfsample.history.facts import Selection
from sfsample.history.store import History
from sfsample.report.formats.html import write
from tests.browser.chromium import Browser
from tests.browser.page import Page
from tests.builders.histories import MIDNIGHT_S, minute

HOSTILE = "</script><img src=x onerror=alert(1)>"
AT = "(({ x, y, width }) => [x, y, width])(document.getElementById('time').getBoundingClientRect())"


@pytest.fixture
def timed(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """Open ten minutes, of which three have no slice; minute n has n + 1 samples, of `early` or of `late`."""
    history = History(str(tmp_path / "history"))
    for at in (0, 1, 2, 3, 4, 5, 9):
        name = "early" if at < 5 else "late"
        closed = minute(at, (f"main;{name}", at + 1, 1000 * (at + 1), 500), ("main", 1, 100, 0))
        stats = closed.report.stats.having(cpu_ms_by_second=[0, 10 * at, 5])
        history.add(closed._replace(report=closed.report._replace(stats=stats)))
    history.add_gap("redis", MIDNIGHT_S + 360, MIDNIGHT_S + 540, HOSTILE)
    report, line = history.time_slices(Selection())
    path = tmp_path / "page.html"
    path.write_bytes(write(report, threads=False, time_slices=line))
    with Page(browser, path, time_zone="UTC") as opened:
        yield opened
        assert opened.exceptions() == []
        assert [url for url in opened.requests() if not url.startswith(("file://", "data:"))] == []


def place(page: Page, minutes: float) -> tuple[float, float]:
    left, top, width = page.js(AT)
    return left + width * minutes / 10, top + 20


def drag(page: Page, begin: float, end: float) -> None:
    for kind, minutes in (("mousePressed", begin), ("mouseMoved", (begin + end) / 2), ("mouseReleased", end)):
        x, y = place(page, minutes)
        page._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


def names(page: Page) -> dict[str, int]:
    """Return the width of each box, by the name of its function."""
    return {name: width for _, name, width in page.boxes() if name.isalpha()}  # without the axis of time


def test_graph_is_of_the_time_that_is_dragged_over(timed, tmp_path):
    whole = timed.shown()
    assert timed.text("#timetext") == "2024-10-04 00:00:00 to 00:10:00: 7 bars; 1 gap; drag to select a time"
    assert {"early", "late"} <= set(names(timed))
    drag(timed, 4.5, 9.5)  # minutes 4, 5 and 9
    assert names(timed) | {"late": 0, "early": 0} == {
        "all": 100,
        "app": 100,
        "main": 100,
        "early": 0,
        "late": 0,
    }
    assert names(timed)["late"] == round(100 * 16 / 24)
    assert timed.text("#edits").startswith("the chosen 24 samples, 63.2 % of all")
    assert timed.text("#timetext") == "2024-10-04 00:04:00 to 00:10:00: 3 of 7 bars; 1 gap"
    name, saved = timed.download("#save", tmp_path)
    assert (name, saved) == ("app.folded", b"app;main 3\napp;main;early 5\napp;main;late 16\n")
    timed.choose("#weight", "elapsed time")
    assert timed.text("#edits").startswith("the chosen 2.13 s")
    timed.back()
    timed.back()
    assert timed.shown() == whole


def test_selection_is_in_the_address(timed, browser):
    drag(timed, 0.5, 1.5)
    assert timed.js("location.hash") == f"#from={MIDNIGHT_S}&to={MIDNIGHT_S + 120}"
    with timed.copy(browser) as again:
        assert again.text("#timetext").startswith("2024-10-04 00:00:00 to 00:02:00")
        assert again.shown() == timed.shown()
    timed.press("Escape")
    assert timed.js("location.hash") == ""
    assert "late" in names(timed)


@pytest.mark.parametrize(
    "fragment", ["from=5", "from=1728000000&to=1", "from=-3&to=9", "from=x", "to=1728000100"]
)
def test_address_of_a_time_without_slices_selects_none(timed, fragment):
    whole = timed.shown()
    waits = "addEventListener('hashchange', () => done(1), { once: true });"
    timed.js(f"new Promise((done) => {{ {waits} location.hash = '{fragment}'; }})")
    assert timed.shown() == whole


def test_keys_select_and_move_and_extend(timed):
    def selected() -> str:
        return timed.text("#timetext")[:31].replace("2024-10-04 ", "")

    timed.js("document.getElementById('time').focus()")
    timed.press("ArrowRight")
    assert selected() == "00:00:00 to 00:01:00"
    timed.press("ArrowLeft")  # there is nothing before it
    assert selected() == "00:00:00 to 00:01:00"
    timed.js("document.activeElement.dispatchEvent(new KeyboardEvent('keydown',"
             " { key: 'ArrowRight', shiftKey: true, bubbles: true }))")  # fmt: skip
    assert selected() == "00:00:00 to 00:02:00"
    timed.press("ArrowRight")
    assert selected() == "00:01:00 to 00:03:00"
    for _ in range(9):
        timed.press("ArrowRight")
    assert selected() == "00:05:00 to 00:10:00"


def test_pointer_tells_of_slices_and_of_gaps(timed):
    timed.move(*place(timed, 2.5))
    assert timed.js("[...document.getElementById('tip').children].map((e) => e.textContent)") == [
        "2024-10-04 00:02:00 to 00:03:00", "samples: 4 samples", "elapsed time: 310 ms", "CPU time: 50.0 ms",
        "coverage 50.0 %",
    ]  # fmt: skip
    timed.move(*place(timed, 7.5))
    assert timed.text("#tip").endswith(f"no slices: {HOSTILE}")


def test_profile_without_slices_has_no_time_line(page):
    assert not page.js("document.getElementById('times').checkVisibility()")
    assert page.text("#timetext") == ""


def test_seconds_of_one_slice_are_a_heat_map(timed):
    heat = "[...document.querySelectorAll('#seconds span > span')].map((cell) => +cell.style.opacity)"
    hidden = "document.getElementById('seconds').hidden"
    assert timed.js(hidden)
    drag(timed, 2.4, 2.6)
    assert (timed.js(heat), timed.js(hidden)) == ([0, 1, 0.25], False)
    assert timed.js("document.querySelectorAll('#seconds > span')[1].title").startswith("00:02:01: 20 ms")
    assert timed.text("#timetext").endswith("; a box is the CPU time of a second, at most 20 ms (00:02:01)")
    drag(timed, 2.5, 3.5)
    assert timed.js(hidden)
