"""Tests of what the user takes out of the page: focus, drop, merge, hide, recursion; and of the sandwich.

Invariant: the page shows the same as one that is made of a report without these frames and stacks.
"""

import random
from itertools import groupby

import pytest

from sfsample.report.formats import FORMATS, read_report
from sfsample.report.merge import filter_stacks, focus, rebuild
from sfsample.report.report import ReportBuilder, ReportThread
from sfsample.symbolize.named_frame import NamedFrame, clean_name
from tests.browser.page import Page
from tests.builders.reports import from_lines, full

FUNCTION = "fn_2"


def is_it(frame):
    return (frame.text, frame.module) == (FUNCTION, "/lib/0.so")


def merged(frames):
    """Return a stack, innermost first, without the callees of the outermost call of the function."""
    at = max((at for at, frame in enumerate(frames) if is_it(frame)), default=0)
    return frames[at:]


EXPECTED = {
    "focus": lambda report: focus(report, is_it),
    "drop": lambda report: filter_stacks(report, is_it, keep=False),
    "merge": lambda report: rebuild(report, merged),
    "hide": lambda report: rebuild(report, lambda frames: [f for f in frames if not is_it(f)]),
    "recursion": lambda report: rebuild(report, lambda frames: [f for f, _ in groupby(frames)]),
}


def random_report(seed):
    """Return a report with recursion, truncated stacks, two processes, and equal names in two modules."""
    rng = random.Random(seed)  # noqa: S311 - the same every time
    builder = ReportBuilder()
    frames = [NamedFrame(f"fn_{n % 7}", module=f"/lib/{n // 7}.so") for n in range(9)]
    for _ in range(40):
        thread = ReportThread(rng.choice(["first", "second"]), "x")
        stack = [frames[rng.randrange(9)] for _ in range(rng.randint(1, 6))]
        builder.add(thread, stack, rng.choice(["outermost"] * 4 + ["no_row"]), (rng.randint(1, 9),))
    return builder.finish()


def act(page, action):
    """Open the table, and do something, with a function if need be."""
    page.press("t")
    if action != "recursion":
        names = [row[-1] for row in page.table()]
        page.click_on(f"tbody tr:nth-child({1 + names.index(f'{FUNCTION} 0.so')})")
    page.click_on(f"#{action}")


def picture(page):
    """Return the table, the tree and the tree of callers."""
    pictures = [page.table(), page.boxes()]
    page.press("i")
    pictures.append(page.boxes())
    page.press("i")
    return pictures


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("action", EXPECTED)
def test_action_shows_what_a_report_with_it_done_shows(browser, tmp_path, action, seed):
    report = random_report(seed)
    with Page(browser, tmp_path, report) as page:
        act(page, action)
        shown = picture(page)
        text = page.download("#save", tmp_path)[1]
        assert page.exceptions() == []
    expected = EXPECTED[action](report)
    assert text == FORMATS["folded"].write(expected)
    with Page(browser, tmp_path, expected) as page:
        page.press("t")
        assert picture(page) == shown


def test_actions_work_together(browser, tmp_path):
    """Without x; from the outermost b; what c calls is its own; without d."""
    report = from_lines("p;a;b;c;e 4", "p;b;d;e 2", "p;x;b 7", "p;a 3", "p;d;b;b;c;c 1")
    with Page(browser, tmp_path, report) as page:
        page.press("t")
        for name, key in (("x", "x"), ("b", "o"), ("c", "m"), ("d", "h")):
            page.press("/")
            page.js("document.getElementById('search').value = ''")
            page.type(f'"{name}"')
            page.js("document.activeElement.blur()")
            page.click_on("tbody tr")
            page.press(key)
        assert page.download("#save", tmp_path)[1] == b"p;b;b;c 1\np;b;c 4\np;b;e 2\n"
        edits = page.text("#edits")
        assert edits.startswith("the chosen 7 samples, 41.2 % of all ")
        assert edits.split("samples, 41.2 % of all ")[1] == "only: b ✕without: x ✕merged: c ✕hidden: d ✕"
        page.click_on("#edits button:nth-of-type(2)")  # with x again
        assert page.download("#save", tmp_path)[1].splitlines()[0] == b"p;b 7"


def test_shares_say_what_they_are_shares_of(page):
    page.press("t")
    assert page.text("caption") == "shares of all 10 samples"
    page.select("Down", "Down", "Down")
    assert page.status.startswith("dict_get  ·  6 samples, 60.0 % of all; self 20.0 %")
    page.press("o")
    page.select("Down", "Down", "Down")
    assert page.status.startswith(
        "hash  ·  4 samples, 66.7 % of the chosen stacks, 40.0 % of all; self 66.7 %"
    )
    assert page.text("caption") == "shares of the chosen 6 samples, 60.0 % of all"


def test_sandwich_has_the_callers_above_and_the_callees_below(browser, tmp_path):
    """Recursion counts once: 6 samples have `fun`, one of them three times."""
    report = from_lines("p;one;fun;xxx 3", "p;two;fun;xxx;yyy 2", "p;two;fun;mid;fun;fun;zzz 1", "p;two 4")
    with Page(browser, tmp_path, report) as page:
        page.select("Down", "Down", "Down")
        assert page.status.startswith("fun  ·  3 samples")
        page.click_on("#sandwich")
        assert page.boxes() == [
            (0, "p", 50), (0, "p", 50),
            (1, "one", 50), (1, "two", 50),
            (2, "fun", 100), (2, "fun", 100),  # the root of both trees
            (3, "mid", 17), (3, "xxx", 83),
            (4, "fun", 17), (4, "yyy", 33),
            (5, "fun", 17),
            (6, "zzz", 17),
        ]  # fmt: skip
        assert page.status.startswith("fun  ·  6 samples, 60.0 % of all; 100.0 % of what is shown")
        assert "callers and callees of fun" in page.text("#edits")
        page.click(*page.at(1, 0.7))
        assert page.status.startswith("two  ·  3 samples, 30.0 % of all; 100.0 % of what is shown")
        assert (3, "xxx", 83) in page.boxes()  # the callees stay as they are
        page.press("f")
        turned = [name for _, name, _ in reversed(page.boxes())]
        assert turned.index("p") < turned.index("two") < turned.index("fun") < turned.index("zzz")
        page.click_on("#edits button")
        assert page.js("location.hash").find("view=") < 0


def test_arrow_keys_walk_through_both_halves_of_the_sandwich(page):
    page.select("Down", "Down", "Down")
    page.press("s")
    for key, name in (("Up", "main"), ("Up", "p"), ("Down", "main"), ("Down", "dict_get"), ("Down", "hash"),
                      ("Up", "dict_get")):  # fmt: skip
        page.select(key)
        assert page.status.startswith(f"{name}  ·"), key


def test_row_of_the_table_is_the_function_of_the_actions(page):
    page.press("t")
    page.click_on("tbody tr:nth-child(1)")  # hash
    page.press("s")
    assert page.status.startswith("hash  ·  6 samples")
    assert page.boxes()[-1] == (3, "hash", 100)
    assert page.text("#matched") == ""  # all of it would be found


def test_actions_need_a_function(page):
    assert page.js("[...document.querySelectorAll('footer button')].every((button) => button.disabled)")
    page.press("s")
    page.press("h")
    assert page.js("location.hash") == ""
    page.select("Down")
    assert not page.js("[...document.querySelectorAll('footer button')].some((button) => button.disabled)")


@pytest.mark.parametrize("thread", ["all threads", "worker/11"])
def test_saved_stacks_can_be_converted(browser, tmp_path, thread):
    report = full()
    with Page(browser, tmp_path, report) as page:
        page.choose("#thread", thread)
        page.choose("#weight", "CPU time")
        name, text = page.download("#save", tmp_path)
        assert [url for url in page.requests() if not url.startswith(("file://", "data:", "blob:"))] == []
    assert name == "app.folded"
    (tmp_path / name).write_bytes(text)
    again = read_report(str(tmp_path / name))
    assert again.total() == (11 if thread == "all threads" else 3)
    assert FORMATS["folded"].write(again) == text
    if thread == "all threads":
        assert text == FORMATS["folded"].write(report)


HOSTILE = [
    "</script><img src=x onerror=window.broken=1>",
    "a;b 7\n",
    "\u202ename",
    "#&=%",
    "\x1b[2J",
    "__proto__",
]


def test_hostile_names_in_the_url_the_edits_and_the_saved_stacks(browser, tmp_path):
    names = [clean_name(name) for name in HOSTILE]
    builder = ReportBuilder()
    for name in names:
        builder.add(ReportThread(name, name), [NamedFrame(name, name), NamedFrame("mid")], "outermost", (1,))
    report = builder.finish()
    with Page(browser, tmp_path, report) as page:
        for at in range(len(names)):
            for key in ("h", "s", "m"):
                page.click_on("#reset")
                page.select("Down", *["Right"] * at, "Down", "Down")
                page.press(key)
                with page.copy(browser) as copy:
                    assert copy.shown() == page.shown()
        page.click_on("#reset")
        page.js(f"location.hash = 'search=' + encodeURIComponent({HOSTILE[0]!r})")
        page.wait("document.getElementById('matched').textContent")
        assert page.js("document.getElementById('search').value") == HOSTILE[0]
        assert page.download("#save", tmp_path)[1] == FORMATS["folded"].write(report)
        assert page.js("window.broken") is None
        assert page.js("document.querySelectorAll('img, script:not([type])').length") == 1
        assert page.exceptions() == []
