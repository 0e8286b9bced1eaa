"""The counts of one row of the table, and the kinds of differences between stacks.

Every stack of a stop is counted once: as compared, or with the reason why not.
"""

from collections import Counter
from typing import NamedTuple

from sfsample.process.capture import CapturedStack
from tests.accuracy.compare import Verdict, compare, only_frames
from tests.accuracy.own_unwinder import OwnUnwinder
from tests.accuracy.peers import NAMES, PeerStack, Stacks


class Parting(NamedTuple):
    """A kind of difference between stacks of sfsample and of a peer; equal ones are counted together."""

    row: str
    peer: str
    verdict: Verdict
    last_common: str
    own_next: str
    peer_next: str


class RowCounts:
    """The counts of one row."""

    def __init__(self, row: str) -> None:
        self.row = row
        self.stops = 0
        self.stacks = 0
        self.both = 0  # identical with every peer
        self.either = 0  # identical with at least one, and longer in none
        self.alone = 0  # the peers agree with each other, and not with sfsample
        self.verdicts = {peer: Counter[str]() for peer in NAMES}
        self.frames: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.captures: Counter[str] = Counter()
        self.partings: Counter[Parting] = Counter()
        self.lost: Counter[str] = Counter()  # stacks or stops that could not be compared, and why

    def add(
        self, own: OwnUnwinder, captured: CapturedStack, peer_stacks: dict[str, PeerStack]
    ) -> list[Parting]:
        """Count one thread at one stop; return the difference from each peer that disagrees."""
        self.stacks += 1
        self.frames.update(frame.found.value for frame in captured.stack.frames)
        self.captures[captured.snapshot.capture.value] += 1
        self.ends[captured.stack.stop_reason.value] += 1
        peer_stacks = {
            peer: stack._replace(pcs=only_frames(stack.pcs, own.executable))
            for peer, stack in peer_stacks.items()
        }
        partings = []
        for peer, stack in peer_stacks.items():
            verdict = compare(pcs(captured), stack.pcs).verdict
            self.verdicts[peer][verdict.value] += 1
            if verdict is not Verdict.IDENTICAL:
                partings.append(_parting(self.row, peer, own, captured, stack))
        self.partings.update(partings)
        self.both += not partings
        shorter = any(parting.verdict is Verdict.SHORTER for parting in partings)
        self.either += len(partings) < len(NAMES) and not shorter
        if len(partings) == len(NAMES):
            first, second = peer_stacks.values()
            self.alone += compare(first.pcs, second.pcs).verdict is Verdict.IDENTICAL
        return partings

    def as_json(self) -> dict[str, object]:
        """Return everything, for `--json`."""
        partings = [[*parting, count] for parting, count in self.partings.most_common()]
        return {**vars(self), "partings": partings}


def pcs(captured: CapturedStack) -> tuple[int, ...]:
    """Return the pcs of a stack of sfsample."""
    return tuple(frame.pc for frame in captured.stack.frames)


def comparable(captured: CapturedStack, tid: int, peers: dict[str, Stacks]) -> dict[str, PeerStack] | str:
    """Return the peers' stacks of a thread, or why they cannot be compared."""
    found = {peer: stacks[tid] for peer, stacks in peers.items() if tid in stacks and stacks[tid].pcs}
    for peer in peers:
        if peer not in found:
            return f"{peer} shows no stack of the thread"
        if found[peer].pcs[0] != pcs(captured)[0]:
            return f"{peer} sees another pc"
    return found


def _parting(row: str, peer: str, own: OwnUnwinder, captured: CapturedStack, stack: PeerStack) -> Parting:
    verdict, common = compare(pcs(captured), stack.pcs)
    frames = captured.stack.frames
    last = frames[common - 1]
    if common < len(frames):
        following = frames[common]
        own_next = f"{own.name(following.pc, exact=following.exact)} by {following.found.value}"
    else:
        own_next = f"end: {captured.stack.stop_reason.value}"
    peer_next = own.name(stack.pcs[common], exact=False) if common < len(stack.pcs) else f"end: {stack.end}"
    return Parting(row, peer, verdict, own.name(last.pc, exact=last.exact), own_next, peer_next)
