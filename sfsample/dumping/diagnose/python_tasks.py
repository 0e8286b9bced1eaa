"""Finds the asyncio tasks that wait for each other, and says what a task waits for.

A task waits for another one that it awaits, or for the one that is inside an `async with` of the Lock that
it needs; an asyncio.Lock notes no owner.
"""

from collections.abc import Iterator, Sequence

from sfsample.dumping.diagnose.wait_graph import Node, cycles
from sfsample.python.tasks import Task


def holder_of(task: Task, tasks: Sequence[Task]) -> Task | None:
    """Return the one task that holds the lock that a task waits for; None: it is not known."""
    holders = [other for other in tasks if set(task.on) & set(other.entered)]
    return holders[0] if len(holders) == 1 else None


def task_text(task: Task, tasks: Sequence[Task]) -> str:
    """Return what a task does: "waits for asyncio.Lock 0x1, held by task Task-2"."""
    if not task.awaits:
        return "is ready, or runs" if task.stack else "is in no coroutine of Python"
    holder = holder_of(task, tasks)
    return f"waits for {task.awaits}" + (f", held by task {holder.name}" if holder else "")


def deadlocks(tasks: Sequence[Task]) -> Iterator[tuple[Task, ...]]:
    """Yield the tasks that wait for each other in a circle."""
    known = {task.address: task for task in tasks}
    edges = dict[Node, Node]()
    for task in tasks:
        targets = [holder.address] if (holder := holder_of(task, tasks)) else [*filter(known.get, task.on)]
        edges |= {Node(0, task.address): Node(0, target) for target in targets[:1]}
    for cycle in cycles(edges):
        yield tuple(known[node.tid] for node in cycle)
