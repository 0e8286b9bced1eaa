"""With --tasks, suspended tasks of asyncio are stacks, in the proportions in which the program makes them."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path

import pytest

from tests.live.cli_runner import sampled
from tests.live.pythons import PYTHONS
from tests.live.targets import assert_untraced

pytestmark = [pytest.mark.live, pytest.mark.any_load, pytest.mark.parametrize("python", PYTHONS, ids=str)]

# Ten tasks in a, five in b, and one that works every 3 ms if the second argument is "busy".
PROGRAM = """
import asyncio, sys
async def inner(): await asyncio.sleep(1000)
async def a(): await inner()
async def b(lock):
    async with lock: pass
async def main(times, is_busy):
    lock = asyncio.Lock()
    await lock.acquire()
    tasks = [asyncio.create_task(a()) for _ in range(10 * times)]
    tasks += [asyncio.create_task(b(lock), name="waiter") for _ in range(5 * times)]
    await asyncio.sleep(0)
    print("ready", flush=True)
    while is_busy: await asyncio.sleep(0.003)
    await asyncio.gather(*tasks)
asyncio.run(main(int(sys.argv[1]), sys.argv[2] == "busy"))
"""
FUNCTIONS = {"a": "asyncio.sleep", "b": "asyncio.Lock", "main": "asyncio.gather"}


@contextmanager
def tasks_of(python: Path, times: int, load: str) -> Iterator[int]:
    command = [python, "-c", PROGRAM, str(times), load]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            assert target.stdout.readline() == b"ready\n"
            yield target.pid
            assert_untraced(target.pid)
        finally:
            target.kill()


def recorded(python: Path, times: int = 1, load: str = "idle") -> tuple[Counter[str], dict[str, int]]:
    """Record until there are enough samples; return those of tasks by outermost function, and all stacks."""
    with tasks_of(python, times, load) as pid:
        done = sampled(
            pid, "--mode", "wall", "--tasks", enough=lambda done: by_function(done.stacks())["a"] > 300
        )
    return by_function(done.stacks()), done.stacks()


def by_function(stacks: dict[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        _, task, *frames = stack.split(";")
        if task.startswith("[task "):
            counts[frames[0].partition(" ")[0]] += count
    return counts


def test_tasks_that_wait_have_samples_like_threads(python: Path) -> None:
    counts, stacks = recorded(python)
    thread = sum(count for stack, count in stacks.items() if ";[task " not in stack)
    assert counts == {"a": 10 * thread, "b": 5 * thread, "main": thread}
    for stack in stacks:
        _, task, *frames = stack.split(";")
        if task.startswith("[task "):
            function = frames[0].partition(" ")[0]
            assert task == ("[task waiter]" if function == "b" else "[task Task]")
            assert frames[-1] == f"[{FUNCTIONS[function]}]"
    [inner] = {stack.split(";")[2:][1].partition(" ")[0] for stack in stacks if ";a (" in stack}
    assert inner == "inner"


def test_tasks_of_a_loop_that_works_are_counted_too(python: Path) -> None:
    counts, _ = recorded(python, load="busy")
    assert counts["a"] == 2 * counts["b"]
    assert 0 < counts["main"] <= counts["a"] / 10


def test_of_many_tasks_some_stand_for_all(python: Path) -> None:
    """sfsample reads 100 of 301 tasks, at random."""
    counts, stacks = recorded(python, times=20)
    thread = sum(count for stack, count in stacks.items() if ";[task " not in stack)
    assert sum(counts.values()) == pytest.approx(301 * thread, rel=0.01)
    assert abs(counts["a"] / sum(counts.values()) - 200 / 301) < 5 * sqrt(2 / 9 / 100)
