"""Too few samples are too few only if that is not by chance."""

import pytest

from sfsample.recording.timer_set import are_too_few


@pytest.mark.parametrize(
    ("due", "samples", "few"),
    [(-1, 0, False), (0, 0, False), (8, 0, False), (10, 0, True), (100, 49, True), (100, 50, False)],
)
def test_less_than_half_of_the_samples(due, samples, few):
    assert are_too_few(samples, due, 0.5) is few


@pytest.mark.parametrize(("due", "samples", "few"), [(100, 70, False), (1000, 799, True), (1000, 800, False)])
def test_less_than_four_fifths_of_the_samples(due, samples, few):
    assert are_too_few(samples, due, 0.8) is few
