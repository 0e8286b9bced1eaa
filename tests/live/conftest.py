"""Targets of a test."""

from collections.abc import Iterator

import pytest

from tests.live.targets import Target, fixture, running


@pytest.fixture
def leaf() -> Iterator[Target]:
    """Start a program whose only thread spins in main;outer;middle;leaf_spin."""
    with running(fixture("v3"), "leaf") as target:
        yield target


@pytest.fixture
def sleeper() -> Iterator[Target]:
    """Start a program whose only thread sleeps in read(2)."""
    with running(fixture("v3"), "sleep") as target:
        yield target
