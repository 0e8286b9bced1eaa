"""Disagreements as files.

Law: a file holds what a walk needs and no more: registers, the stack that was copied, the mappings.
"""

import json
from base64 import b64encode
from pathlib import Path

from sfsample.memory import BytesMemory, Memory, PiecewiseMemory
from tests.accuracy.ours import Ours, OurStack
from tests.accuracy.peers import TheirStack
from tests.accuracy.tally import Parting


class Saver:
    """Writes the first few disagreements of each kind to a directory."""

    def __init__(self, directory: Path | None, most: int = 2) -> None:
        self._directory = directory
        self._most = most
        self._seen: dict[Parting, int] = {}

    def __call__(
        self, ours: Ours, mine: OurStack, theirs: dict[str, TheirStack], partings: list[Parting]
    ) -> None:
        """Keep one."""
        if self._directory is None or all(self._seen.get(parting, 0) >= self._most for parting in partings):
            return
        for parting in partings:
            self._seen[parting] = self._seen.get(parting, 0) + 1
        self._directory.mkdir(parents=True, exist_ok=True)
        number = sum(self._seen.values())
        name = "".join(c if c.isalnum() else "-" for c in partings[0].row)
        value = {
            "partings": partings,
            "registers": mine.snapshot.registers,
            "memory": [[base, b64encode(data).decode()] for base, data in _pieces(mine.snapshot.memory)],
            "maps": Path(f"/proc/{ours.pid}/maps").read_text(errors="replace").splitlines(),
            "ours": [[hex(f.pc), hex(f.sp), f.found, ours.name(f.pc, exact=f.exact)]
                     for f in mine.stack.frames],
            "ended": [mine.stack.stop_reason, mine.stack.stopped_at],
            "theirs": {peer: [*([hex(pc), ours.name(pc, exact=False)] for pc in their.pcs), their.end]
                       for peer, their in theirs.items()},
        }  # fmt: skip
        (self._directory / f"{name}-{number}.json").write_text(json.dumps(value, indent=1))


def _pieces(memory: Memory) -> list[tuple[int, bytes]]:
    match memory:
        case BytesMemory():
            return [(memory.base, memory.data)]
        case PiecewiseMemory():
            return [piece for part in memory.pieces for piece in _pieces(part)]
    return []
