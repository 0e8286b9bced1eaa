"""Starts one Chromium for all tests; the tests are skipped where it is not installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, chromium_path
from tests.browser.page import REPORT, Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium_path() is None:
        pytest.skip("Chromium is not installed (scripts/setup dev installs Debian's)")
    chromium = Browser()
    yield chromium
    chromium.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """Open a small profile; at the end, the page has made no mistake and no request."""
    with Page(browser, tmp_path, REPORT) as opened:
        yield opened
        assert opened.exceptions() == []
        assert [url for url in opened.requests() if not url.startswith(("file://", "data:"))] == []
