"""Compares the samples of a fixture program with the chains of calls that the program itself states.

`target list` prints the chains (tests/fixtures/src/target.c explains the notation).  A sample is right if no
frame is missing, none is extra, each is in the right module, and each was found by the stepper that describes
the code of its callee.
"""

import subprocess
from collections import Counter
from functools import cache
from typing import NamedTuple

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import Found, StopReason
from sfsample.modules.module import Module
from sfsample.recording.profile import Profile
from sfsample.recording.sample import StackKey
from sfsample.symbolize.symbolizer import Symbolizer
from tests.live.targets import ARCH, HANG_S, fixture

_GENERATED = Found.CODE if ARCH is AMD64 else Found.FRAME_POINTER
_STEPPERS = {"<signal>": Found.SIGNAL_FRAME, "<null>": Found.NULL_CALL, "<jit>": _GENERATED}
SPECIAL = tuple(_STEPPERS)
_STUB_STEPPERS = {"aarch64": Found.PLT}  # ld writes no table for stubs; on s390x it does
# These call main; in a static program they are part of it, else of libc.
_BEFORE_MAIN = ("__libc_start_main", "__libc_start_main_impl", "__libc_start_call_main")
_LIBRARY_OF = {"callee_entry": ("libcallee.so", "libplugin.so")}


class Token(NamedTuple):
    """One word of a chain.  The name "..." stands for frames of other modules."""

    name: str
    least: int = 1  # times in a row
    most: int = 1


class Place(NamedTuple):
    """One frame of a sample, with what a chain can say about it."""

    name: str | None
    module: str | None  # base name
    special: str | None
    stub: bool  # in .plt
    in_sframe: bool = True  # has a row there


@cache
def listed_chains(program: str) -> dict[str, list[list[Token]]]:
    """Return for each scenario one chain for each kind of thread, outermost function first."""
    words = (program, "list")
    text = subprocess.run(words, check=True, capture_output=True, text=True, timeout=HANG_S).stdout
    chains = {}
    for line in text.splitlines():
        scenario, _, kinds = line.partition("\t")
        chains[scenario] = [[_token(word) for word in kind.split()] for kind in kinds.split(";")]
    return chains


def _token(word: str) -> Token:
    if word == "...":
        return Token(word, 0, 64)
    if word.endswith("?"):
        return Token(word[:-1], 0, 1)
    name, star, times = word.partition("*")
    return Token(name, int(times), int(times)) if star else Token(name)


@cache
def own_names() -> frozenset[str]:
    """Return every function that any chain names."""
    chains = listed_chains(str(fixture("v3"))).values()
    return frozenset(token.name for kinds in chains for kind in kinds for token in kind) - {"...", *SPECIAL}


class Checker:
    """Compares the samples of one program with its chains."""

    def __init__(self, program: str) -> None:
        _, self._generation, self._base = program.rsplit("/", 2)
        self._static = self._base == "target-static"
        self._symbolizer = Symbolizer()

    def places(self, key: StackKey) -> list[Place]:
        """Return the frames of a stack, outermost first, without waits and kernel functions."""
        return [self._place(*place[:3]) for place in reversed(key.locations)
                if place.wait is None and not place.kernel]  # fmt: skip

    def _place(self, module: Module | None, address: int, lookup: int) -> Place:
        if module is None:
            return Place(None, None, "<null>" if address == 0 else "<jit>", stub=False)
        symbol = self._symbolizer.symbol(module, lookup)
        special = "<signal>" if self._is_trampoline(module, module.address(address)) else None
        sections = [s for s in module.image.sections if s.name.startswith(".plt")]
        stub = any(s.vaddr <= lookup < s.vaddr + s.size for s in sections)
        name = symbol.name.partition("@@")[0] if symbol else None  # less the version
        in_sframe = any(table.row_at(lookup) for table in module.tables.sframe.covering(lookup))
        return Place(name, module.path.rpartition("/")[2], special, stub, in_sframe)

    def _is_trampoline(self, module: Module, address: int) -> bool:
        return any(module.code(address, len(kind.code)) == kind.code for kind in ARCH.signal_frames)

    # -- names

    def disagreement(self, places: list[Place], chain: list[Token]) -> str | None:
        """Return what is wrong with a stack, or None."""
        above, below = self._split(places, chain)
        if above is None:
            return f"{chain[0].name} is missing"
        problem = self._wrong_start(above, main=chain[0].name == "main")
        if problem:
            return problem
        return None if self._match(below, chain) else "is not the chain"

    def _split(self, places: list[Place], chain: list[Token]) -> tuple[list[Place] | None, list[Place]]:
        """Split before the first place that the chain names."""
        optional = {token.name for token in chain if not token.least}
        starts = {chain[0].name, *optional} - {"..."}
        for at, place in enumerate(places):
            if place.name in starts:
                return places[:at], places[at:]
        return (None, places) if chain[0].least else (places, [])

    def _wrong_start(self, above: list[Place], *, main: bool) -> str | None:
        """Return what is wrong with the outermost frames: `_start` and libc, or a thread's start in libc."""
        if main:
            if not above or above[0].name != "_start" or above[0].module != self._base:
                return "does not begin in _start"
            above = above[1:]
            if not 1 <= len(above) <= 2:
                return f"{len(above)} frames between _start and main"
        # at the end of a thread, libc calls its own free(3) through a stub
        own_stub = any(p.stub and p.module == self._base for p in above)
        foreign = all(self._foreign(p) and p.special is None for p in above) and not own_stub
        if not foreign or (main and above[0].name not in _BEFORE_MAIN):
            return "comes from a wrong place"
        return None

    def _foreign(self, place: Place) -> bool:
        """Return True if "..." stands for the frame: code of another module, or the stub that calls it."""
        if place.name in own_names() or place.module is None:
            return False
        if place.module == self._base and not self._static:
            return place.stub
        return True

    def _match(self, places: list[Place], chain: list[Token]) -> bool:
        if not chain:
            return not places
        token = chain[0]
        for count in range(token.most + 1):
            if count >= token.least and self._match(places[count:], chain[1:]):
                return True
            if count >= len(places) or not self._fits(places[count], token.name):
                return False
        return False

    def _fits(self, place: Place, name: str) -> bool:
        if name == "...":
            return self._foreign(place)
        if name in SPECIAL:
            return place.special == name
        homes = (self._base,) if self._static else _LIBRARY_OF.get(name, (self._base,))
        return place.name == name and place.module in homes

    # -- labels

    def labels(self, places: list[Place]) -> list[Found]:
        """Return how each frame must be found, innermost first: by what describes its callee's code."""
        inward = places[::-1]
        return [Found.CONTEXT, *(self._stepper(place) for place in inward[:-1])]

    def _stepper(self, place: Place) -> Found:
        if place.special:
            return _STEPPERS[place.special]
        if place.name == "drap_caller" and self._generation in ("v1", "v2") and ARCH is AMD64:
            return Found.EH_FRAME  # only V3 can state a CFA in r10
        if place.stub:
            return Found.SFRAME if place.in_sframe else _STUB_STEPPERS.get(ARCH.name, Found.EH_FRAME)
        return Found.SFRAME if place.name in own_names() else Found.EH_FRAME

    # -- a whole recording

    def check(self, profile: Profile, chains: dict[int, list[list[Token]]], *, labels: bool = True) -> None:
        """Assert that every sample is right; `chains` are those allowed for each thread id."""
        expected: Counter[str] = Counter()
        for key, count in profile.counts.items():
            places = self.places(key)
            shown = " ".join(place.special or place.name or f"[{place.module}]" for place in places)
            assert key.stop_reason is StopReason.OUTERMOST, f"{key.stop_reason}: {shown}"
            wrong = [self.disagreement(places, chain) for chain in chains[key.tid]]
            assert None in wrong, f"{wrong}: {shown}"
            for label in self.labels(places):
                expected[label] += count
        if labels:
            assert profile.stats.frames == expected, f"{profile.stats.frames} {expected}"


needs_generated_code = pytest.mark.skipif(
    "framepointer" not in listed_chains(str(fixture("v3"))), reason="no generated code for this machine"
)
