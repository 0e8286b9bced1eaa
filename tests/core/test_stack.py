"""`common_tail` counts the outermost frames that two stacks share."""

from sfsample.core.stack import Frame, common_tail


def test_common_tail_counts_equal_outermost_frames():
    one, two = (Frame(n, n, n, "x", exact=False) for n in range(2))
    assert common_tail((one, two), ()) == 0
    assert common_tail((one, two), (two,)) == 1
    assert common_tail((one, one, two), (one, two)) == 2
    assert (
        common_tail((two, one, two, one), (two, two, two, one)) == 2
    )  # the third frame from the end differs
    assert common_tail((one,) * 5, (one,) * 9) == 5
