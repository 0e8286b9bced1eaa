"""Gives an incomplete stack, with the memory of its Python frames, to the store of such stacks."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from sfsample.core.budget import CAPTURE_NS, READ_NS, Budget, CountedMemory
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.module_map import ModuleMap
from sfsample.process.capture import CapturedStack
from sfsample.process.process import LiveProcess
from sfsample.process.vm import read_memory
from sfsample.runtimes.cpython.saved import SavedPython, save_python


class StackStore(Protocol):
    """Keeps stacks that are incomplete (`saved_stacks.store`)."""

    def keep(
        self, process: str, snapshot: ThreadSnapshot, stack: Stack, modules: ModuleMap,
        python: Callable[[], SavedPython | None] = lambda: None, /,
    ) -> None:  # fmt: skip
        """Write a stack if it is incomplete and new; then call `python` for its Python frames."""
        ...


def keep_bad(store: StackStore, process: LiveProcess, name: str, captured: CapturedStack) -> None:
    """Keep a stack that lacks native or Python frames."""
    snapshot, stack, python = captured.snapshot, captured.stack, captured.python
    if python is None:
        store.keep(name, snapshot, stack, process.modules)
        return
    if stack.stop_reason is StopReason.OUTERMOST and not python.is_whole:
        stack = stack._replace(stop_reason=StopReason.PYTHON)

    def saved() -> SavedPython | None:
        own_id = process.own_id(snapshot.tid)
        now = partial(read_memory, process.proc.anchor())
        counted = CountedMemory(now, Budget(CAPTURE_NS), READ_NS)
        return save_python(process.modules, counted.read, own_id, python, (snapshot.memory, stack.frames))

    store.keep(name, snapshot, stack, process.modules, saved)
