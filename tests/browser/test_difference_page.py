"""The page of a difference shows what vanished: the caption names it, and the width of `before` shows it."""

from sfsample.report.formats.difference import difference_html
from tests.browser.chromium import Tab
from tests.builders.reports import compare, from_lines

CHOOSE_BEFORE = """(() => {
  const select = document.getElementById("weight");
  select.value = [...select.options].find((option) => option.text === "before").value;
  select.dispatchEvent(new Event("change"));
})()"""


def test_what_vanished_has_a_box_where_before_gives_the_width(browser, tmp_path):
    before, after = from_lines("p;gone 300", "p;kept 100"), from_lines("p;kept 400")
    path = tmp_path / "diff.html"
    path.write_bytes(difference_html(before, after, compare(before, after)))
    statuses = []
    for script in ("0", CHOOSE_BEFORE):
        with Tab(browser) as page:
            page.open(f"file://{path}", "document.documentElement.dataset.ready")
            assert page.text("#extent").endswith('vanished, and shown with Width "before": gone')
            page.js(script)
            page.press("ArrowDown")
            page.press("ArrowDown")  # the heaviest callee of p
            statuses.append(page.text("#status"))
            assert page.exceptions() == []
    assert [text.split()[0] for text in statuses] == ["kept", "gone"]
    assert "change -75.00 % of all samples" in statuses[1]


def test_page_opens_with_the_widths_of_before_if_hardly_anything_is_left(browser, tmp_path):
    before, after = (
        from_lines(lines)._replace(duration_ns=10**10, rate_hz=100.0) for lines in ("p;work 400", "p;work 4")
    )
    path = tmp_path / "diff.html"
    path.write_bytes(difference_html(before, after, compare(before, after)))
    with Tab(browser) as page:
        page.open(f"file://{path}", "document.documentElement.dataset.ready")
        assert page.js("document.getElementById('weight').selectedOptions[0].text") == "before"
        assert "40.00 % of one CPU" in page.text("#status")
