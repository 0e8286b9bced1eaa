"""What was seen of one row of the table: counts, and the ways in which stacks parted.

Law: every stack that was stopped is counted once, as compared or as why it could not be.
"""

from collections import Counter
from typing import NamedTuple

from sfsample.process.capture import CapturedStack
from tests.accuracy.compare import Verdict, compare, only_frames
from tests.accuracy.ours import Ours
from tests.accuracy.peers import NAMES, Stacks, TheirStack


class Parting(NamedTuple):
    """Where a stack of ours and one of a peer part; stacks that part in the same way are counted together."""

    row: str
    peer: str
    verdict: Verdict
    last_common: str
    ours_next: str
    theirs_next: str


class Recorder:
    """The counts of one row."""

    def __init__(self, row: str) -> None:
        self.row = row
        self.stops = 0
        self.stacks = 0
        self.both = 0  # identical with every peer
        self.either = 0  # identical with at least one, and followed further by none
        self.alone = 0  # the peers agree with each other, and not with us
        self.verdicts = {peer: Counter[str]() for peer in NAMES}
        self.frames: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.captures: Counter[str] = Counter()
        self.partings: Counter[Parting] = Counter()
        self.lost: Counter[str] = Counter()  # stacks or stops that could not be compared, and why

    def add(self, ours: Ours, mine: CapturedStack, theirs: dict[str, TheirStack]) -> list[Parting]:
        """Count one thread at one instant; return how it parted from each peer that does not agree."""
        self.stacks += 1
        self.frames.update(frame.found.value for frame in mine.stack.frames)
        self.captures[mine.snapshot.capture.value] += 1
        self.ends[mine.stack.stop_reason.value] += 1
        theirs = {peer: t._replace(pcs=only_frames(t.pcs, ours.executable)) for peer, t in theirs.items()}
        partings = []
        for peer, their in theirs.items():
            verdict = compare(pcs(mine), their.pcs).verdict
            self.verdicts[peer][verdict.value] += 1
            if verdict is not Verdict.IDENTICAL:
                partings.append(_parting(self.row, peer, ours, mine, their))
        self.partings.update(partings)
        self.both += not partings
        shorter = any(parting.verdict is Verdict.SHORTER for parting in partings)
        self.either += len(partings) < len(NAMES) and not shorter
        if len(partings) == len(NAMES):
            one, other = theirs.values()
            self.alone += compare(one.pcs, other.pcs).verdict is Verdict.IDENTICAL
        return partings

    def as_json(self) -> dict[str, object]:
        """Return everything, for `--json`."""
        partings = [[*parting, count] for parting, count in self.partings.most_common()]
        return {**vars(self), "partings": partings}


def pcs(mine: CapturedStack) -> tuple[int, ...]:
    """Return our stack as the others give theirs."""
    return tuple(frame.pc for frame in mine.stack.frames)


def comparable(mine: CapturedStack, tid: int, peers: dict[str, Stacks]) -> dict[str, TheirStack] | str:
    """Return the peers' stacks of a thread, or why they cannot be compared."""
    theirs = {peer: stacks[tid] for peer, stacks in peers.items() if tid in stacks and stacks[tid].pcs}
    for peer in peers:
        if peer not in theirs:
            return f"{peer} shows no stack of the thread"
        if theirs[peer].pcs[0] != pcs(mine)[0]:
            return f"{peer} sees another pc"
    return theirs


def _parting(row: str, peer: str, ours: Ours, mine: CapturedStack, their: TheirStack) -> Parting:
    verdict, common = compare(pcs(mine), their.pcs)
    frames = mine.stack.frames
    last = frames[common - 1]
    if common < len(frames):
        following = frames[common]
        next_ours = f"{ours.name(following.pc, exact=following.exact)} by {following.found.value}"
    else:
        next_ours = f"end: {mine.stack.stop_reason.value}"
    theirs_next = (
        ours.name(their.pcs[common], exact=False) if common < len(their.pcs) else f"end: {their.end}"
    )
    return Parting(row, peer, verdict, ours.name(last.pc, exact=last.exact), next_ours, theirs_next)
