"""The version of an interpreter without symbols is that whose structures are in memory, or is refused."""

import pytest

from sfsample.errors import BadInput
from sfsample.runtimes.cpython.find import NotStarted, _by_shape
from sfsample.runtimes.cpython.layout import FIXED

RUNTIME, INTERPRETER, THREAD = 0x1000, 0x2000, 0x3000


def by_shape(words: dict[int, int]):
    return _by_shape(RUNTIME, lambda at, size: words.get(at, 0).to_bytes(size, "little"))


def structures(minor: int, tid: int = 4711) -> dict[int, int]:
    layout = FIXED[minor]
    return {
        RUNTIME + layout.interpreters: INTERPRETER,
        INTERPRETER + layout.threads: THREAD,
        THREAD + layout.thread_interpreter: INTERPRETER,
        THREAD + layout.native_thread_id: tid,
    }


@pytest.mark.parametrize("minor", FIXED)
def test_structures_tell_the_version(minor):
    assert by_shape(structures(minor)).minor == minor


@pytest.mark.parametrize("words", [
    {RUNTIME + 40: INTERPRETER},  # 3.10: the list of interpreters is at the same place, others are not
    structures(11, tid=0), structures(12, tid=1 << 40),
    structures(11) | structures(12) | {INTERPRETER + 16: THREAD, INTERPRETER + 72: THREAD},
], ids=["no thread", "no id", "no id of a thread", "both"])  # fmt: skip
def test_other_structures_are_refused(words):
    with pytest.raises(BadInput, match="it is older") as refused:
        by_shape(words)
    assert not isinstance(refused.value, NotStarted)


def test_memory_of_an_interpreter_that_has_not_started():
    with pytest.raises(NotStarted):
        by_shape({})
