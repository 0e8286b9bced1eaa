"""Starts one Chromium for each file of tests; the tests are skipped where it is not installed."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, chromium_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium_path() is None:
        pytest.skip("Chromium is not installed (scripts/setup all installs Debian's)")
    chromium = Browser()
    yield chromium
    chromium.close()
