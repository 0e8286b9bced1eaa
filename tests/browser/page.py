"""The html page in a tab: what the tests of it click, and where."""

from pathlib import Path
from typing import Any

from sfsample.report.formats import FORMATS
from sfsample.report.report import Report
from tests.browser.chromium import Browser, Tab
from tests.builders.reports import from_lines

READY = "document.documentElement.dataset.ready"
CANVAS = "(({ x, y, width }) => [x, y, width])(document.getElementById('canvas').getBoundingClientRect())"
TABLE_ROWS = (
    "[...document.querySelectorAll('tbody tr')].map((r) => [...r.cells].map((c) => c.textContent.trim()))"
)
# every box that is drawn with its name: [row from the top, name, width in pixels]
BOXES = """new Promise((done) => {
  const boxes = [], { prototype } = CanvasRenderingContext2D, { fillRect, fillText } = prototype;
  let box;
  prototype.fillRect = (x, y, width) => { box = [Math.round(y / 19), width]; };
  prototype.fillText = (text) => boxes.push([box[0], text, box[1]]);
  dispatchEvent(new Event("resize"));
  Object.assign(prototype, { fillRect, fillText });
  dispatchEvent(new Event("resize"));
  done(boxes);
})"""
BACK = "new Promise((done) => { addEventListener('hashchange', () => done(true), { once: true });"
SHOWN = """[
 [...document.querySelectorAll('#status, #matched, #edits, #legend, caption, tbody tr')]
   .filter((e) => e.checkVisibility()).map((e) => e.textContent),
 [...document.querySelectorAll('[aria-pressed]')].map((e) => [e.id, e.ariaPressed, e.disabled]),
 [...document.querySelectorAll('#search, select')].map((e) => e.value),
 [...document.querySelectorAll('#graph, #table')].map((e) => e.hidden)]"""
ROW = 19  # pixels, as in flame.js
REPORT = from_lines(
    "p;main;dict_get;hash 4", "p;main;dict_get 2", "p;main;write 2", "p;idle;hash 2"
)  # 10 samples


class Page(Tab):
    """A page with a report on it; without a report `path` is the page, otherwise a directory for it."""

    def __init__(
        self,
        browser: Browser,
        path: Path,
        report: Report | None = None,
        *,
        time_zone: str = "",
        **options: Any,
    ) -> None:
        super().__init__(browser, **options)
        if time_zone:
            self.set_time_zone(time_zone)
        if report is not None:
            path /= "page.html"
            path.write_bytes(FORMATS["html"].write(report))
        self.open(f"file://{path}", READY)

    def at(self, depth: int, share: float) -> tuple[float, float]:
        """Return the point in a row of the graph (0: the root), at a share of the width."""
        left, top, width = self.js(CANVAS)
        return left + share * width, top + depth * ROW + ROW / 2

    @property
    def status(self) -> str:
        return self.text("#status")

    def choose(self, selector: str, text: str) -> None:
        """Choose the option of a select whose text begins so."""
        assert self.js(
            f"(() => {{ const s = document.querySelector({selector!r}); const o = [...s.options].find((o) =>"
            f" o.text.startsWith({text!r})); if (!o) return false; s.value = o.value;"
            " s.dispatchEvent(new Event('change')); return true; })()"
        )

    def table(self) -> list[list[str]]:
        return self.js(TABLE_ROWS)

    def boxes(self) -> list[tuple[int, str, int]]:
        """Return the row (from the top), the name and the share of the width in percent of each box."""
        whole = self.js("document.getElementById('canvas').clientWidth")
        return sorted((row, name, round(100 * width / whole)) for row, name, width in self.js(BOXES))

    def shown(self) -> list[object]:
        """Return all that the user sees, in a form that can be compared."""
        return [*self.js(SHOWN), self.boxes()]

    def back(self) -> None:
        """Press the browser's button Back."""
        self.js(f"{BACK} history.back(); }})")

    def select(self, *keys: str) -> None:
        """Select a box with the arrow keys: "Down", "Right"."""
        self.js("document.getElementById('canvas').focus()")
        for key in keys:
            self.press(f"Arrow{key}")

    def copy(self, browser: Browser) -> "Page":
        """Open the address of the page in another tab."""
        again = Page.__new__(Page)
        Tab.__init__(again, browser)
        again.open(self.js("location.href"), READY)
        return again
