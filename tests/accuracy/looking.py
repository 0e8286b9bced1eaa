"""One row: start its programs, stop them at random instants, have all three look, count.

Law: an instant counts only if the process was in the same state before and after all had looked.
"""

import random
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from sfsample.errors import TargetError
from sfsample.process.capture import CapturedStack
from tests.accuracy.ours import Ours
from tests.accuracy.peers import Gdb, PeerError, TheirStack, eu_stack, gdb
from tests.accuracy.programs import Program
from tests.accuracy.running import Running, Tools, UnavailableError, debug_files, prepare, started
from tests.accuracy.stopping import places, stopped
from tests.accuracy.tally import Parting, Recorder, comparable

_BETWEEN_S = (0.0005, 0.02)
_MOST_LOST = 20
Keep = Callable[[Ours, CapturedStack, dict[str, TheirStack], list[Parting]], None]


class AccuracyRun:
    """Looks at programs; `keep` is given every stack that another unwinder sees otherwise."""

    def __init__(self, cache: Path, tools: Tools, dice: random.Random, keep: Keep) -> None:
        self._cache = cache
        self._tools = tools
        self._dice = dice
        self._keep = keep

    def row(self, programs: list[Program], stacks: int, tally: Recorder) -> None:
        """Add about that many stacks of the programs of a row to its tally."""
        each = -(-stacks // len(programs))
        # a gdb for each executable: it does not notice that another one without build-id has taken its place
        for _, same in groupby(programs, key=lambda p: (p.command.split()[0], p.build)):
            with gdb() as asked:
                for program in same:
                    self._program(program, asked, tally.stacks + each, tally)

    def _program(self, program: Program, asked: Gdb, wanted: int, tally: Recorder) -> None:
        try:
            binary = prepare(program, self._cache, self._tools)
            asked.debug_files = debug_files(program, binary, self._tools)
            with started(program, binary) as running:
                self._instants(running, asked, wanted, tally)
        except UnavailableError as why:
            tally.lost[f"{program.command}: {why}"] += 1

    def _instants(self, running: Running, asked: Gdb, wanted: int, tally: Recorder) -> None:
        ours: Ours | None = None
        lost = 0
        try:
            while tally.stacks < wanted and lost < _MOST_LOST:
                time.sleep(self._dice.uniform(*_BETWEEN_S))
                pid = running.pid()
                if ours is None or ours.pid != pid:
                    if ours is not None:
                        ours.close()
                    ours = _open(pid)
                why = "no process to look at" if ours is None else self._instant(ours, asked, tally)
                if why:
                    lost += 1
                    tally.lost[why] += 1
        finally:
            if ours is not None:
                ours.close()

    def _instant(self, ours: Ours, asked: Gdb, tally: Recorder) -> str:
        """Stop once, let all look; return why it does not count."""
        with stopped(ours.pid) as slept:
            if slept is None:
                return "it has ended, or does not stop"
            before = places(ours.pid)
            try:
                mine, peers = ours.look(before, slept), {"eu-stack": eu_stack(ours.pid, asked.debug_files)}
                with asked.looking(ours.pid) as peers["gdb"]:
                    after = places(ours.pid)
            except (PeerError, TargetError) as why:
                return str(why).splitlines()[0]
        tally.stops += 1
        for tid, look in mine.items():
            theirs = comparable(look, tid, peers) if before.get(tid) == after.get(tid) else "it moved"
            if isinstance(theirs, str):
                tally.lost[theirs] += 1
                continue
            partings = tally.add(ours, look, theirs)
            if partings:
                self._keep(ours, look, theirs, partings)
        return ""


def _open(pid: int) -> Ours | None:
    try:
        return Ours(pid) if pid else None
    except TargetError:
        return None
