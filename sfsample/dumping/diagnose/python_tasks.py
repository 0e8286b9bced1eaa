"""Finds asyncio tasks that wait for each other, and describes the wait of a task."""

from collections.abc import Iterator, Sequence

from sfsample.dumping.diagnose.wait_graph import Node, cycles
from sfsample.runtimes.cpython.tasks import Task

_MAX_CHAIN = 8  # tasks of a chain that are named


def task_text(task: Task) -> str:
    """Return a text about a task, such as "waits for asyncio.Lock 0x1, held by task Task-2"."""
    if not task.awaits:
        return "is ready, or runs" if task.stack else "is in no coroutine of Python"
    return f"waits for {task.awaits}" + f", held by task {task.held_by}" * bool(task.held_by)


def chain_text(tasks: Sequence[Task]) -> str:
    """Return a sentence about the first task that no task needs, and the tasks that it needs; "": none."""
    by_address = {task.address: task for task in tasks}
    needed = {address for task in tasks for address in task.on}
    task = next((task for task in tasks if task.address not in needed), None)
    text, seen = f"task {task.name}" if task else "", set[int]()
    while task is not None and task.address not in seen and len(seen) < _MAX_CHAIN:
        seen.add(task.address)
        text += f"{', which' * (len(seen) > 1)} {task_text(task)}"
        last, task = task, next(filter(None, map(by_address.get, task.on)), None)
        if task and len(last.on) > 1:
            text += f", of them {task.name}"
        where = last.own_function and f", in {last.own_function}"
    return text and text + where


def deadlocks(tasks: Sequence[Task]) -> Iterator[tuple[Task, ...]]:
    """Yield each circle of tasks that wait for each other."""
    by_address = {task.address: task for task in tasks}
    needs = ((task.address, next(filter(by_address.get, task.on), None)) for task in tasks)
    edges = {Node(0, task): Node(0, needed) for task, needed in needs if needed is not None}
    for cycle in cycles(edges):
        yield tuple(by_address[node.tid] for node in cycle)
