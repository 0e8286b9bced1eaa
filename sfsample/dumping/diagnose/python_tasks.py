"""Finds asyncio tasks that wait for each other, and describes the wait of a task."""

from collections.abc import Iterator, Sequence

from sfsample.dumping.diagnose.wait_graph import Node, cycles
from sfsample.runtimes.cpython.tasks import Task


def task_text(task: Task) -> str:
    """Return a text about a task, such as "waits for asyncio.Lock 0x1, held by task Task-2"."""
    if not task.awaits:
        return "is ready, or runs" if task.stack else "is in no coroutine of Python"
    return f"waits for {task.awaits}" + f", held by task {task.held_by}" * bool(task.held_by)


def deadlocks(tasks: Sequence[Task]) -> Iterator[tuple[Task, ...]]:
    """Yield each circle of tasks that wait for each other."""
    by_address = {task.address: task for task in tasks}
    needs = ((task.address, next(filter(by_address.get, task.on), None)) for task in tasks)
    edges = {Node(0, task): Node(0, needed) for task, needed in needs if needed is not None}
    for cycle in cycles(edges):
        yield tuple(by_address[node.tid] for node in cycle)
