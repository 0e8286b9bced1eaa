"""One Chromium for each file of tests, gone after it; without one they are skipped, with the reason."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, find


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find() is None:
        pytest.skip("there is no Chromium (scripts/setup all installs Debian's)")
    made = Browser()
    yield made
    made.close()
