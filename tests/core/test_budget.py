"""A look ends when it has spent its budget, which is counted by reads and bytes; the next one begins anew."""

import pytest

from sfsample.core.budget import CAPTURE_NS, COPIED_NS, READ_NS, Budget, CountedMemory, InstructionBudget
from sfsample.core.checkpoint import OutOfTime
from sfsample.core.memory import BytesMemory


def test_counted_memory_has_nothing_more_once_its_budget_is_spent() -> None:
    budget = Budget(2 * COPIED_NS)
    memory = CountedMemory(BytesMemory(0x1000, bytes(range(16))).read, budget)
    assert memory.byteorder == "little"
    assert memory.word(0x1000) == int.from_bytes(bytes(range(8)), "little")
    assert memory.read(0x1000, 16) == bytes(range(16))
    assert budget.why == ""
    assert memory.read(0x1000, 16) is None
    assert memory.word(0x1000) is None
    assert budget.why == "there are too many"


def test_large_reads_cost_more() -> None:
    large, small = Budget(CAPTURE_NS), Budget(CAPTURE_NS)
    assert large.permits(256 << 10)
    assert not large.permits(256 << 10)
    assert all(small.permits(320) for _ in range(CAPTURE_NS // READ_NS))
    assert not small.permits(320)


def test_process_may_cost_a_quarter_each_time() -> None:
    budget = Budget(100)
    assert budget.take(0, 100)
    for _ in range(10):
        budget.begin()
        assert budget.take(0, 25)
    assert not budget.take(0, 1)
    budget.begin()
    assert budget.why == ""
    assert not budget.take(0, 26)
    for _ in range(10):
        budget.begin()  # what is not taken is kept, but no more than a whole budget
    assert budget.take(0, 100)
    assert not budget.take(0, 1)


def test_look_ends_when_sfsample_is_asked_to_end() -> None:
    answers = [False, True, False]
    budget = Budget(CAPTURE_NS, lambda: answers.pop(0))
    assert [budget.permits(8) for _ in range(3)] == [True, False, False]
    assert budget.why == "sfsample was asked to end"


def test_recording_follows_so_many_instructions_at_once_and_so_many_a_second(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    instructions = InstructionBudget()
    follow(instructions, 1_000_000)  # a dump has no limit
    instructions.begin()
    follow(instructions, 150_000)
    with pytest.raises(OutOfTime):
        instructions.check()
    now[0] += 0.5
    follow(instructions, 20_000)  # a search that has begun goes on: it takes 5,000 of the next ones
    now[0] += 0.15
    with pytest.raises(OutOfTime):
        instructions.check()
    now[0] += 0.05
    instructions.check()


def follow(instructions: InstructionBudget, number: int) -> None:
    instructions.check()
    for _ in range(number):
        instructions.take()
