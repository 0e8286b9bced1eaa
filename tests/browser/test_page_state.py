"""Tests of what the page's URL keeps: each step, the way back, Reset, and what a damaged URL does."""

import pytest

from tests.browser.page import Page
from tests.builders.reports import from_lines, full

HASH = "location.hash"
STEPS = {
    "zoom": lambda page: page.click(*page.at(2, 0.3)),
    "selection": lambda page: page.select("Down", "Down"),
    "search": lambda page: (page.press("/"), page.type("out")),
    "regular expression": lambda page: (page.press("/"), page.type("/^(/")),
    "module": lambda page: page.click_on("#legend button"),
    "callers": lambda page: page.click_on("#invert"),
    "flame": lambda page: page.click_on("#flip"),
    "table": lambda page: page.click_on("#functions"),
    "recursion": lambda page: page.click_on("#recursion"),
    "thread": lambda page: page.choose("#thread", "worker/11"),
    "weight": lambda page: page.choose("#weight", "CPU time"),
    "colour": lambda page: page.choose("#colour", "how it was found"),
}
WITH_FUNCTION = ("sandwich", "focus", "drop", "merge", "hide")


@pytest.fixture
def rich(browser, tmp_path):
    with Page(browser, tmp_path, full()) as page:
        yield page
        assert page.exceptions() == []


def check_step(browser, page, step):
    """A step changes the page and its URL; the URL shows the same elsewhere; Back undoes the step."""
    before, url = page.shown(), page.js("location.href")
    step(page)
    after = page.shown()
    assert after != before
    with page.copy(browser) as copy:
        assert copy.shown() == after
        assert copy.exceptions() == []
    page.back()
    assert page.shown() == before
    assert page.js("location.href") == url


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_step_is_in_the_url_and_back_undoes_it(browser, rich, step):
    check_step(browser, rich, step)


@pytest.mark.parametrize("action", WITH_FUNCTION)
def test_action_on_a_function_is_in_the_url_and_back_undoes_it(browser, rich, action):
    rich.select("Down", "Down", "Down")
    check_step(browser, rich, lambda page: page.click_on(f"#{action}"))


def test_chosen_row_and_order_of_the_table_are_in_the_url(browser, rich):
    rich.press("t")
    check_step(browser, rich, lambda page: page.click_on("th:nth-child(2) button"))
    check_step(browser, rich, lambda page: page.click_on("tbody tr:nth-child(2)"))


@pytest.mark.parametrize("row", [1, 3])  # of a caller, and of a callee
def test_box_of_the_sandwich_is_in_the_url(browser, page, row):
    page.select("Down", "Down", "Down")
    page.press("s")
    check_step(browser, page, lambda page: page.click(*page.at(row, 0.2)))


def test_typing_a_word_is_one_step(page):
    length = page.js("history.length")
    page.press("/")
    for end in range(1, 5):
        page.js("document.getElementById('search').value = ''")
        page.type("hash"[:end])
    assert page.text("#matched") == "60.0 % matched"
    assert page.js("history.length") == length + 1
    page.back()
    assert page.text("#matched") == page.js("document.getElementById('search').value") == ""


def test_another_word_after_another_step_is_another_step(page):
    page.press("/")
    page.type("ha")
    page.js("document.getElementById('canvas').focus()")
    page.press("/")
    page.type("sh")
    page.back()
    assert page.js("document.getElementById('search').value") == "ha"


def test_escape_leaves_one_thing_at_a_time(rich):
    urls = [rich.js("location.href")]
    for step in ("callers", "zoom", "search"):
        STEPS[step](rich)
        urls.append(rich.js("location.href"))
    rich.js("document.activeElement.blur()")
    rich.press("?")
    rich.press("Escape")
    assert rich.js("document.getElementById('keys').hidden")
    for url in reversed(urls):
        assert rich.js("location.href") == url
        rich.press("Escape")
    assert rich.js("location.href") == urls[0]


def test_reset_puts_everything_back(rich):
    start, url = rich.shown(), rich.js("location.href")
    for step in STEPS.values():
        step(rich)
        rich.js("document.activeElement.blur()")
    for key in ("Down", "Down", "h", "Down", "m", "Down", "o", "s"):
        rich.select(key) if key == "Down" else rich.press(key)
    everything = rich.shown()
    rich.click_on("#reset")
    assert rich.shown() == start
    assert rich.js("location.href") == url
    rich.back()
    assert rich.shown() == everything


GARBAGE = ["", "#", "a", "zoom", "zoom=%", "zoom=%E0%A4%A", "zoom=AAAAABBBBB", "zoom=.AAAAA&at=.", "at=A",
           "view=sandwich", "view=sandwich&of=AAAAA", "view=__proto__", "thread=2", "thread=-1",
           "thread=1e3", "weight=1", "weight=constructor", "colour=change", "order=toString",
           "focus=AAAAA&hide=x&merge=%00", "drop=%F0%9F", "table=yes", "recursion=true", "row=-----",
           "__proto__=1&toString=2", "&&&===", "\u202e", "%u0000", "<img src=x onerror=window.broken=1>",
           "zoom=" + "A" * 100_000]  # fmt: skip


def visit(page, link):
    """Change the part of the URL after `#`, as the user can."""
    page.js(f"history.replaceState(null, '', {link!r}); dispatchEvent(new Event('hashchange'))")


def test_garbage_in_the_url_is_left_out(page):
    start = page.shown()
    for garbage in GARBAGE:
        visit(page, f"#{garbage}")
        assert page.shown() == start, garbage
    assert page.js("window.broken") is None


def test_garbage_in_the_url_of_a_page_that_opens(browser, page):
    start = page.shown()
    page.js("location.hash = 'view=sandwich&zoom=%E0&thread=9&hide=~&focus=AAAAA'")
    with page.copy(browser) as copy:
        assert copy.shown() == start
        assert copy.exceptions() == []


def test_link_holds_for_another_recording_of_the_program(browser, page, tmp_path):
    """The page ignores a function that has no box in the other recording."""
    page.select("Down", "Down", "Down")
    page.press("h")
    page.click(*page.at(3, 0.3))
    link = page.js(HASH)
    (tmp_path / "other").mkdir()
    with Page(browser, tmp_path / "other", from_lines("p;aaa;x 5", "p;main;dict_get;hash 3")) as other:
        visit(other, link)
        assert "hidden: dict_get" in other.text("#edits")
        assert other.status.startswith("hash  ·  3 samples, 37.5 % of all; 100.0 % of what is shown")
