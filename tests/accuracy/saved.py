"""Saves stacks on which the unwinders disagree: a core file for `sfsample dump --core`, and a text in JSON.

The core file has the registers and the stack that sfsample has captured; the JSON has the stacks of all
unwinders.  Only the first few of each kind are saved.
"""

import json
from pathlib import Path

from sfsample.process.capture import CapturedStack
from tests.accuracy.own_unwinder import OwnUnwinder
from tests.accuracy.peers import PeerStack
from tests.accuracy.row_counts import Parting


class Saver:
    """Writes stacks to a directory, or nowhere if that is None."""

    def __init__(self, directory: Path | None, max_of_a_kind: int = 2) -> None:
        self._directory = directory
        self._max_of_a_kind = max_of_a_kind
        self._seen: dict[Parting, int] = {}
        self._files = 0

    def __call__(
        self,
        own: OwnUnwinder,
        captured: CapturedStack,
        peer_stacks: dict[str, PeerStack],
        partings: list[Parting],
    ) -> None:
        """Save a stack, unless there are enough of its kind."""
        is_known = all(self._seen.get(parting, 0) >= self._max_of_a_kind for parting in partings)
        if self._directory is None or is_known:
            return
        for parting in partings:
            self._seen[parting] = self._seen.get(parting, 0) + 1
        self._files += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        row = "".join(c if c.isalnum() else "-" for c in partings[0].row)
        stack = captured.stack
        document = {
            "partings": partings,
            "frames": [[hex(frame.pc), str(frame.found)] for frame in stack.frames],
            "named": [own.name(frame.pc, exact=frame.exact) for frame in stack.frames],
            "theirs": {
                peer: [*(f"{pc:#x} {own.name(pc, exact=False)}" for pc in each.pcs), each.end]
                for peer, each in peer_stacks.items()
            },
        }
        name = self._directory / f"{row}-{self._files}"
        name.with_suffix(".json").write_text(json.dumps(document, indent=1))
        name.with_suffix(".core").write_bytes(own.core(captured))
