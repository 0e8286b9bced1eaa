"""Copies more of a thread than its stack, in the same system call: where a language keeps its frames.

All that can be allocated is allocated before the pause.
"""

from collections.abc import Callable, Sequence

from sfsample.core.arch import ByteOrder
from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.process.vm import CopyBuffer, PiecesAndStack

_MAX_FOLLOWED = 16  # pieces that are copied one by one, as they were not foreseen
_MAX_PIECE_BYTES = 256

# (memory so far) -> the next piece that is needed (address, size); None: there is none
Wanted = Callable[[Memory], tuple[int, int] | None]


class Beside:
    """What is copied beside the stack of one thread: `ranges` (address, size), and what `wanted` asks for."""

    def __init__(self, ranges: Sequence[tuple[int, int]], wanted: Wanted, order: ByteOrder) -> None:
        self.ranges, self.wanted = ranges, wanted
        self._pieces = PiecesAndStack(ranges)
        self._order = order
        self._spare = CopyBuffer(_MAX_PIECE_BYTES)
        self._views = [
            BytesMemory(at, self._pieces.view(number), order)  # type: ignore[arg-type]  # is only read
            for number, (at, _) in enumerate(ranges)
        ]
        self._followed: list[BytesMemory] = []
        self._has_read = False

    def fill(self, pid: int, buffer: CopyBuffer, address: int, size: int) -> int | None:
        """Copy the pieces and, in the same call, a stack to `buffer`; return how many bytes of the stack.

        None: one of the pieces cannot be read any more.
        """
        self._followed = []
        count = self._pieces.read_with(pid, buffer, address, size)
        self._has_read = count is not None
        return count

    def follow(self, pid: int, stack: BytesMemory) -> None:
        """Copy what else is needed, a few pieces at most."""
        memory = PiecewiseMemory(stack, *self._views)
        while self._has_read and len(self._followed) < _MAX_FOLLOWED:
            piece = self.wanted(memory)
            if piece is None or self._spare.fill(pid, *piece) < min(piece[1], _MAX_PIECE_BYTES):
                return
            self._followed.append(BytesMemory(piece[0], bytes(self._spare.bytes[: piece[1]]), self._order))
            memory = PiecewiseMemory(stack, *self._views, *self._followed)

    def result(self) -> tuple[BytesMemory, ...]:
        """Return what was copied; the next copy does not change it."""
        if not self._has_read:
            return ()
        copies = (BytesMemory(view.base, bytes(view.data), self._order) for view in self._views)
        return (*copies, *self._followed)
