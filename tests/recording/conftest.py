"""Fixtures of the tests of samplers."""

import pytest

from tests.recording.fake_process import FakeClock, FakeProcess


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def process(clock):
    return FakeProcess(clock)
