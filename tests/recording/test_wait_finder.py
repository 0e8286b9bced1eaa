"""Which threads a futex word may name."""

from types import SimpleNamespace

import pytest

from sfsample.recording import wait_finder
from sfsample.recording.wait_finder import ThreadIds


class Process:
    """Threads whose ids in their own pid namespace are smaller by 100."""

    def __init__(self, *tids: int) -> None:
        self.alive, self.lists = {*tids}, 0
        self.proc = SimpleNamespace(threads=self.threads, thread=self.thread)

    def threads(self):
        self.lists += 1
        return sorted(self.alive)

    def thread(self, tid):
        return SimpleNamespace(counters=lambda: b"1 2 3" if tid in self.alive else None)

    def own_id(self, tid):
        return tid - 100


def test_ids_are_those_of_living_threads():
    process = Process(101, 102)
    ids = ThreadIds(process)
    assert (ids[1], ids[2], len(ids), [*ids]) == (101, 102, 2, [1, 2])
    process.alive.remove(102)
    assert 2 not in ids
    with pytest.raises(KeyError):
        ids[3]


def test_words_that_are_no_ids_do_not_list_the_threads_again_and_again(monkeypatch):
    process = Process(101)
    ids = ThreadIds(process)
    assert not any(word in ids for word in range(1000, 2000))
    assert process.lists == 1
    process.alive.add(102)
    monkeypatch.setattr(wait_finder.time, "perf_counter_ns", lambda: ids._next_list_ns)
    assert ids.get(2) == 102
