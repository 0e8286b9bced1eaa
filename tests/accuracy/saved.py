"""Disagreements as files that `sfsample replay` unwinds again, here or elsewhere.

Law: the format is the product's own; what the others said is added to it, and the first few of each kind are
kept.
"""

import json
from pathlib import Path

from sfsample.process.capture import CapturedStack
from sfsample.saved_stacks.format import save, to_json
from tests.accuracy.ours import Ours
from tests.accuracy.peers import TheirStack
from tests.accuracy.tally import Parting


class Saver:
    """Writes disagreements to a directory; None: nowhere."""

    def __init__(self, directory: Path | None, most: int = 2) -> None:
        self._directory = directory
        self._most = most
        self._seen: dict[Parting, int] = {}
        self._files = 0

    def __call__(
        self, ours: Ours, mine: CapturedStack, theirs: dict[str, TheirStack], partings: list[Parting]
    ) -> None:
        """Keep one."""
        known = all(self._seen.get(parting, 0) >= self._most for parting in partings)
        if self._directory is None or known:
            return
        for parting in partings:
            self._seen[parting] = self._seen.get(parting, 0) + 1
        self._files += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        row = "".join(c if c.isalnum() else "-" for c in partings[0].row)
        document = json.loads(to_json(save(row, mine.snapshot, mine.stack, ours.target.modules)))
        document["partings"] = partings
        document["named"] = [ours.name(frame.pc, exact=frame.exact) for frame in mine.stack.frames]
        document["theirs"] = {
            peer: [*(f"{pc:#x} {ours.name(pc, exact=False)}" for pc in their.pcs), their.end]
            for peer, their in theirs.items()
        }
        (self._directory / f"{row}-{self._files}.json").write_text(json.dumps(document, indent=1))
