"""The version of an interpreter without symbols is that whose structures are in memory, or is refused."""

from types import SimpleNamespace

import pytest

from sfsample.errors import BadInput
from sfsample.modules.mapping import Mapping
from sfsample.runtimes.cpython import find
from sfsample.runtimes.cpython.find import Interpreter, NotStarted, _by_shape, find_interpreter
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
    with pytest.raises(BadInput, match="this Python is older") as refused:
        by_shape(words)
    assert not isinstance(refused.value, NotStarted)


def test_memory_of_an_interpreter_that_has_not_started():
    with pytest.raises(NotStarted):
        by_shape({})


def test_extension_modules_are_opened_last(monkeypatch):
    """A program maps dozens of them below libpython."""
    paths = ["/bin/app", "/lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so",
             "/lib/libc.so.6", "/lib/libpython3.11.so.1.0"]  # fmt: skip
    mappings = [
        Mapping(at, at + 1, True, True, 0, "08:01", at, path, False) for at, path in enumerate(paths, 1)
    ]
    opened = []

    def find_in(path: str, mapping: Mapping, _) -> Interpreter | None:
        opened.append(path)
        return Interpreter(mapping, 0, FIXED[11]) if "libpython" in path else None

    monkeypatch.setattr(find, "_find_in", find_in)
    modules = SimpleNamespace(mappings=mappings, find=lambda at: paths[at - 1])
    found = find_interpreter(modules, lambda *_: None)
    assert found == Interpreter(mappings[3], 0, FIXED[11], (mappings[0],))
    assert opened == [paths[0], paths[3]]
