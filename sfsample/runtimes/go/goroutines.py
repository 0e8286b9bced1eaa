"""Reads all goroutines of a process that runs on: states, reasons to wait, and stacks.

Go's runtime never frees a `g`, so the addresses in `runtime.allgs` stay valid.  But the runtime reuses a `g`
for another goroutine, and moves stacks.  So if the fields of a goroutine have changed after sfsample has read
the stack, sfsample reads fields and stack again.

Source: Go, src/runtime/proc.go (allgs).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from sfsample.core.budget import GOROUTINE_NS, READ_NS, Budget
from sfsample.core.memory import ReadMany, Span, word_in
from sfsample.runtimes.go.layout import G_SELF, Goroutine, GoRuntimeLayout
from sfsample.runtimes.go.waits import WaitReader

_MAX_GOROUTINES = 1 << 24
_BATCH = 1024  # goroutines that are read together
_MAX_STACK_BYTES = 1 << 17  # bytes of a stack that are read; the frame that reads inotify has 64 KiB
_MAX_BSS_BYTES = 64 << 20  # bytes of variables that are searched
_MAX_READINGS = 3  # attempts to read a goroutine whose fields change during the reading


def find_goroutines(variables: Iterable[Span], read: ReadMany) -> int:
    """Return the address of `runtime.allgs`, which has address and length of an array; 0: not found.

    `variables`: memory of variables that begin as zero (.bss).  sfsample recognizes the array by its first
    and its last goroutine: the field `sched.g` of a goroutine has the goroutine's address, or 0 at first.
    """

    def word(address: int) -> int:
        return word_in(read([(address, 8)])[0])

    for address, size in variables:
        [data] = read([(address, size & -8)]) if 0 < size <= _MAX_BSS_BYTES else [None]
        words = memoryview(data or b"").cast("Q")
        for at, (array, length, capacity) in enumerate(zip(words, words[1:], words[2:], strict=False)):
            if 0 < length <= capacity <= _MAX_GOROUTINES and array and not array % 8:
                ends = word(array), word(array + 8 * (length - 1))
                are_goroutines = all(g and not g % 8 and word(g + G_SELF) in (g, 0) for g in ends)
                if are_goroutines and word(ends[0] + G_SELF):
                    return address + 8 * at
    return 0


class GoroutineReader:
    """Reads the goroutines of one process.  `reasons`: texts of the reasons to wait, by number."""

    def __init__(
        self, layout: GoRuntimeLayout, reasons: Sequence[str], read: ReadMany, budget: Budget
    ) -> None:
        self._layout, self._reasons, self._read, self._budget = layout, reasons, read, budget
        self._waits = WaitReader(layout, read)
        self.objects = self._waits.objects  # copies of channels and semaphores; see `WaitReader`
        self.read_of = 0, 0  # number of array entries that were read, number of all entries

    def goroutines(self, array: Span) -> Iterator[Goroutine]:
        """Yield all living goroutines; `array`: address and length of the array of their addresses.

        The reader stops when the budget is spent; `read_of` then says how much was read.
        """
        address, length = array
        self.read_of = 0, length
        for at in range(0, length, _BATCH):
            count = min(_BATCH, length - at)
            if not self._budget.permits(0, count * READ_NS):
                return
            [data] = self._read([(address + 8 * at, 8 * count)])
            for goroutine in self._batch(memoryview(data or b"").cast("Q").tolist()):
                if not self._budget.permits(len(goroutine.stack), GOROUTINE_NS):
                    return
                yield goroutine
            self.read_of = at + count, length

    def chosen(self, array: int, indexes: Iterable[int]) -> list[Goroutine]:
        """Return the living goroutines among some entries of the array; `objects` stays empty."""
        words = self._read([(array + 8 * at, 8) for at in indexes])
        found = [*self._batch([*map(word_in, words)])]
        self.objects.clear()  # a recording needs no objects, and would collect more and more
        return found

    def unmoved(self, places: Mapping[int, bytes]) -> frozenset[int]:
        """Return the ids of the goroutines that were not resumed; `places`: `Goroutine.place` by address."""
        addresses = iter(places)
        batches = iter(lambda: [*islice(addresses, _BATCH)], [])
        heads = chain.from_iterable(self._heads(batch).items() for batch in batches)
        now = ((address, self._layout.place(head)) for address, head in heads if head)
        return frozenset(word_in(place) for address, place in now if places[address] == place)

    def _batch(self, addresses: Sequence[int]) -> Iterator[Goroutine]:
        for attempt in range(_MAX_READINGS):
            heads = self._heads(addresses)
            found = [*self._decoded(heads)]
            yield from (goroutine for goroutine in found if not goroutine.sp)
            parked = self._with_stacks([goroutine for goroutine in found if goroutine.sp])
            waits = self._waits.waits(parked)
            again = self._heads(goroutine.address for goroutine in parked)
            addresses = []
            for goroutine in parked:
                address = goroutine.address
                if again[address] == heads[address]:
                    yield goroutine._replace(wait=waits.get(address, goroutine.wait))
                elif attempt < _MAX_READINGS - 1:
                    addresses.append(address)
                else:
                    yield goroutine._replace(stack=b"")

    def _heads(self, addresses: Iterable[int]) -> dict[int, bytes | None]:
        known = [*addresses]
        size = self._layout.g_until + 8
        return dict(zip(known, self._read([(g, size) for g in known]) if known else (), strict=True))

    def _decoded(self, heads: Mapping[int, bytes | None]) -> Iterator[Goroutine]:
        for address, head in heads.items():
            goroutine = self._layout.goroutine(address, head, self._reasons) if head else None
            if goroutine is not None:
                m, locked_to = goroutine.thread, goroutine.locked_to
                if m or locked_to:
                    goroutine = goroutine._replace(tid=self._tid(m), locked_to=self._tid(locked_to))
                yield goroutine

    def _tid(self, m: int) -> int:
        return word_in(self._read([(m + self._layout.m_tid, 8)])[0]) if m else 0

    def _with_stacks(self, parked: Sequence[Goroutine]) -> list[Goroutine]:
        sizes = [max(0, min(g.high - g.sp & -8, _MAX_STACK_BYTES)) for g in parked]
        stacks = self._read([(g.sp, size) for g, size in zip(parked, sizes, strict=True)]) if parked else ()
        return [g._replace(stack=stack or b"") for g, stack in zip(parked, stacks, strict=True)]
