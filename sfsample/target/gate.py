"""A gate between pauses, for whoever wants to stop this whole process (Ctrl-Z).

Law: it is closed while a thread of a target is held, or was asked to stop and will, so that to stop us is
never to stop the target.  Who holds PAUSE, holds it open.
"""

import _thread

PAUSE = _thread.allocate_lock()


class Closers:
    """Several targets may hold threads at once; the first closes the gate, the last one opens it."""

    def __init__(self) -> None:
        self._mutex = _thread.allocate_lock()
        self._count = 0

    def add(self) -> None:
        """Close the gate; not while somebody holds it open."""
        with self._mutex:
            if not self._count:
                PAUSE.acquire()
            self._count += 1

    def remove(self) -> None:
        """Take back one `add`."""
        with self._mutex:
            self._count -= 1
            if not self._count:
                PAUSE.release()


CLOSERS = Closers()
