"""The end of a goroutine's stack is no damage if only the copy ends there."""

from types import SimpleNamespace

import pytest

from sfsample.core.arch import AMD64
from sfsample.process.capture import ThreadCapturer
from sfsample.runtimes.go.layout import Goroutine

SP, HIGH = 0xC000200000, 0xC000200040


@pytest.mark.parametrize(("copied", "is_cut"), [(0x40, False), (0x38, True)])
def test_the_copy_of_a_deep_stack_is_said_to_be_cut(copied, is_cut):
    goroutine = Goroutine(0, 7, "select", 0, 1, 0, 0, 1, SP, 0, HIGH, 0, 0, 0, b"", bytes(copied))
    unwinder = SimpleNamespace(walk_parked=lambda snapshot, *, exact: (snapshot.bounded, exact))
    capturer = SimpleNamespace(_process=SimpleNamespace(arch=AMD64), _unwinder=unwinder)
    assert ThreadCapturer.parked_stack(capturer, goroutine) == (is_cut, False)
