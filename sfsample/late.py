"""Modules that a dependency imports for its debugging help, and that nobody here ever uses.

Law: while `late` is entered they are not loaded but stood for; when a function of one is called after all, it
is loaded, and the real function does the work.  One that is loaded already is left alone.  In a program with
other threads, which might import the stand-in for themselves, nothing is late.
"""

import _thread
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType


@contextmanager
def late(*names: str) -> Iterator[None]:
    """Let imports of these modules, of whose functions only calls matter, cost nothing."""
    alone = not _thread._count()  # noqa: SLF001 - of threads beside the first; `threading` is not loaded
    standing = {name: _Late(name) for name in names if alone and name not in sys.modules}
    sys.modules.update(standing)
    try:
        yield
    finally:
        for name in standing:
            del sys.modules[name]


class _Late(ModuleType):
    def __getattr__(self, function: str) -> Callable[..., object]:
        if function.startswith("__"):  # the import system asks for some that need not be there
            raise AttributeError(function)

        def real(*args: object, **named: object) -> object:
            return getattr(import_module(self.__name__), function)(*args, **named)

        return real
