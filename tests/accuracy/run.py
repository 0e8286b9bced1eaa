"""Compares one row of programs: starts them, stops them at random times, unwinds with all three, and counts.

A stop counts only if the process was in the same state before and after the three unwinders.
"""

import random
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from sfsample.errors import TargetError
from sfsample.process.capture import CapturedStack
from tests.accuracy.own_unwinder import OwnUnwinder
from tests.accuracy.peers import Gdb, PeerError, PeerStack, eu_stack, gdb
from tests.accuracy.programs import Program
from tests.accuracy.row_counts import Parting, RowCounts, comparable
from tests.accuracy.running import Running, Tools, UnavailableError, debug_files, prepare, started
from tests.accuracy.stopping import places, stopped

_BETWEEN_STOPS_S = (0.0005, 0.02)
_MAX_FAILED_STOPS = 20
KeepStack = Callable[[OwnUnwinder, CapturedStack, dict[str, PeerStack], list[Parting]], None]


class AccuracyRun:
    """Compares programs; `keep` gets every stack on which another unwinder disagrees."""

    def __init__(self, cache: Path, tools: Tools, dice: random.Random, keep: KeepStack) -> None:
        self._cache = cache
        self._tools = tools
        self._dice = dice
        self._keep = keep

    def row(self, programs: list[Program], stacks: int, counts: RowCounts) -> None:
        """Add about `stacks` stacks of the programs of a row to its counts."""
        each = -(-stacks // len(programs))
        # one gdb for each executable: it does not notice when another one without a build-id replaces it
        for _, same in groupby(programs, key=lambda p: (p.command.split()[0], p.build)):
            with gdb() as debugger:
                for program in same:
                    self._program(program, debugger, counts.stacks + each, counts)

    def _program(self, program: Program, debugger: Gdb, total: int, counts: RowCounts) -> None:
        try:
            binary = prepare(program, self._cache, self._tools)
            debugger.debug_files = debug_files(program, binary, self._tools)
            with started(program, binary) as running:
                self._stops(running, debugger, total, counts)
        except UnavailableError as why:
            counts.lost[f"{program.command}: {why}"] += 1

    def _stops(self, running: Running, debugger: Gdb, total: int, counts: RowCounts) -> None:
        own: OwnUnwinder | None = None
        failed = 0
        try:
            while counts.stacks < total and failed < _MAX_FAILED_STOPS:
                time.sleep(self._dice.uniform(*_BETWEEN_STOPS_S))
                pid = running.pid()
                if own is None or own.pid != pid:
                    if own is not None:
                        own.close()
                    own = _open(pid)
                why = "no process to stop" if own is None else self._stop(own, debugger, counts)
                if why:
                    failed += 1
                    counts.lost[why] += 1
        finally:
            if own is not None:
                own.close()

    def _stop(self, own: OwnUnwinder, debugger: Gdb, counts: RowCounts) -> str:
        """Stop the process once and unwind with all three; return why it does not count, or ''."""
        with stopped(own.pid) as slept:
            if slept is None:
                return "it has ended, or does not stop"
            before = places(own.pid)
            try:
                captured = own.capture_all(before, slept)
                peers = {"eu-stack": eu_stack(own.pid, debugger.debug_files)}
                with debugger.attached(own.pid) as peers["gdb"]:
                    after = places(own.pid)
            except (PeerError, TargetError) as why:
                return str(why).splitlines()[0]
        counts.stops += 1
        for tid, stack in captured.items():
            peer_stacks = comparable(stack, tid, peers) if before.get(tid) == after.get(tid) else "it moved"
            if isinstance(peer_stacks, str):
                counts.lost[peer_stacks] += 1
                continue
            partings = counts.add(own, stack, peer_stacks)
            if partings:
                self._keep(own, stack, peer_stacks, partings)
        return ""


def _open(pid: int) -> OwnUnwinder | None:
    try:
        return OwnUnwinder(pid) if pid else None
    except TargetError:
        return None
