"""At every instruction of a program for AArch64 or s390x, each unwinder returns the true stack.

Programs are stepped under qemu's user emulation: one from the loader's first instruction on, through
relocation, constructors and lazy linkage stubs, and one through each of its scenarios: signals, longjmp,
coroutines, a thread.  `emulated` records the true stack.  (Single steps inside a guest do not work: qemu's
s390x executes branches as if they were not taken when it is stepped.)  EXCEPTIONS lists all known
differences, as in test_every_instruction.py.
"""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.lib.debian import KEYRING, Failed, filling, unpack_packages
from sfsample.core.arch import AARCH64, S390X, Arch
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, START, Unwinder
from tests.live.emulated import Emulated, State, emulated
from tests.live.shadow import Entry, caller_by

pytestmark = [pytest.mark.live, pytest.mark.extended]

FIXTURES = Path(__file__).parents[1] / "fixtures"
CACHE = Path(tempfile.gettempdir()) / "sfsample-guests"
DEBIAN = {"aarch64": "arm64", "s390x": "s390x"}
NO_SFRAME = tuple(stepper for stepper in DEFAULT_STEPPERS if stepper.found is not Found.SFRAME)
ARCHES = (AARCH64, S390X)
STRIDE = 29  # of the loader's and libc's instructions, one of so many is judged
MAX_OWN = 600  # instructions of the program
STOPS = ("stop", "skip", "nested", "return_from_null", "note")  # functions; all but the first handle signals
SIGNALS = ("signal", "alternate", "nested", "raised", "null")
SCENARIOS = ("frames", "lazy", *SIGNALS, "longjmp", "contexts", "threads")
# gcc's crtbegin.o and crti.o have no tables
UNTABLED = {"_init", "frame_dummy", "register_tm_clones", "call_weak_fn"}


def libraries(machine: str) -> Path:
    """Return Debian's libc of a machine, unpacked once."""
    for root in filling(CACHE / f"libc-{DEBIAN[machine]}"):
        try:
            unpack_packages(root, "trixie", "base-files", "libc6", architecture=DEBIAN[machine])
        except Failed as failure:
            raise pytest.fail.Exception(str(failure), pytrace=False) from None
    return CACHE / f"libc-{DEBIAN[machine]}" / "files"


def is_whole(stack: Stack, truth: list[tuple[int, int]]) -> bool:
    return stack.stop_reason is StopReason.OUTERMOST and [(f.pc, f.sp) for f in stack.frames] == truth


@contextmanager
def started(arch: Arch, words: list[str], directory: Path) -> Iterator[Emulated]:
    """Start one of the fixtures."""
    missing = [name for name in (f"qemu-{arch.name}", "apt-get", "dpkg-deb") if shutil.which(name) is None]
    missing += [] if Path(KEYRING).exists() else ["debian-archive-keyring"]
    if missing:
        pytest.skip(f"no {arch.name} program can run: {', '.join(missing)} not installed")
    with emulated(arch, libraries(arch.name), words, directory) as target:
        yield target


class Wrong(NamedTuple):
    """A wrong stack (`stepper` is None), or a wrong step of one stepper."""

    target: Emulated
    state: State
    stepper: Found | None
    stack: Stack

    @property
    def truth(self) -> list[tuple[int, int]]:
        return self.target.truth(self.state)


def wrong(
    target: Emulated, state: State, unwinders: Iterable[Unwinder], counts: Counter[str]
) -> Iterator[Wrong]:
    """Yield each stack of an unwinder, and each step of a stepper, that is not the true one."""
    for unwinder in unwinders:
        stack = unwinder.walk(target.snapshot(state))
        counts.update(frame.found for frame in stack.frames)
        if not is_whole(stack, target.truth(state)):
            yield Wrong(target, state, None, stack)
    yield from wrong_steps(target, state)


def wrong_steps(target: Emulated, state: State) -> Iterator[Wrong]:
    """Ask alone each stepper that has a row for the pc which is not a guess."""
    snapshot, truth = target.snapshot(state), target.truth(state)
    frame = Frame(*truth[0], None, Found.CONTEXT, exact=True)
    for stepper in DEFAULT_STEPPERS:
        row = stepper.row_at(frame, target.modules.find(frame.pc), target.arch)
        if row is not None and not row.guess:
            seen = caller_by(row, snapshot)
            if seen != (truth[1] if truth[1:] else None):
                callers = (Frame(*seen, None, stepper.found, exact=False),) if isinstance(seen, tuple) else ()
                yield Wrong(target, state, stepper.found, Stack((frame, *callers), StopReason.NO_ROW))


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_start_of_a_program(arch, tmp_path):
    program = str(FIXTURES / arch.name / "v3/target")
    explained, own, seen = [], 0, 0
    with started(arch, [program, "plt", "1"], tmp_path) as target:
        unwinders = (Unwinder(target.modules), Unwinder(target.modules, NO_SFRAME))
        for number, state in enumerate(target.steps()):
            target.modules.allow_refresh()
            pc = state.registers[arch.pc]
            module = target.modules.find(pc)
            is_own = module is not None and module.path == program
            own += is_own
            if own > MAX_OWN:
                break
            if number % STRIDE and not is_own:
                continue
            seen += 1
            found = wrong(target, state, unwinders, Counter())
            explained += [(one.stepper, explain(one)) for one in found if function(one, pc) not in UNTABLED]
    assert own > MAX_OWN
    assert seen > 3000
    assert explained == ([(Found.EH_FRAME, "start")] if arch is AARCH64 else [])


def functions(target: Emulated, program: str) -> dict[str, int]:
    """Return the addresses of the functions of a program."""
    names = Symbolizer()
    target.modules.refresh()
    module = next(module for module in target.modules.open_all() if module.path == program)
    found = ((names.symbol(module, fde.start), fde.start) for fde in module.tables.eh_frame.fdes())
    return {symbol.name: module.address(start) for symbol, start in found if symbol}


def above_of(stack: Stack) -> list[Entry]:
    """Return the callers of a scenario's start, main and libc, outermost first; they come from unwinding."""
    assert stack.stop_reason is StopReason.OUTERMOST
    assert len(stack.frames) >= 4  # stop, main, libc, _start
    return [Entry(f.sp, f.pc, f.sp) for f in reversed(stack.frames[1:])]


def is_jumping(wrong: Wrong) -> bool:
    """Return True if the CFA of one of the first two frames depends on a register other than sp and fp."""
    arch, index = wrong.target.arch, wrong.target.modules
    for number, (pc, sp) in enumerate(wrong.truth[:2]):
        frame = Frame(pc, sp, None, Found.CONTEXT, exact=not number)
        rows = (stepper.row_at(frame, index.find(frame.lookup_pc), arch) for stepper in DEFAULT_STEPPERS)
        row = next((row for row in rows if row is not None and not row.guess), None)
        if row is not None and row.ra is not None and row.cfa.base not in (arch.sp, arch.fp):
            return True
    return False


def is_end_of_coroutine(wrong: Wrong) -> bool:
    *frames, last = ((frame.pc, frame.sp) for frame in wrong.stack.frames)
    too_much = frames == wrong.truth and last[1] == wrong.truth[-1][1]
    is_complete = wrong.stepper is not None or wrong.stack.stop_reason is StopReason.OUTERMOST
    return is_complete and too_much and function(wrong, frames[-1][0]) == "setcontext"


def is_start(wrong: Wrong) -> bool:
    frame = Frame(*wrong.truth[0], None, Found.CONTEXT, exact=True)
    known = START.row_at(frame, wrong.target.modules.find(frame.pc), wrong.target.arch)
    return wrong.stepper is Found.EH_FRAME and known is not None


def is_in_swapcontext(wrong: Wrong) -> bool:
    """Whether the only extra frames are of swapcontext, or the frame to which it returns."""
    arch, (here, *callers) = wrong.target.arch, wrong.truth
    frames = [(frame.pc, frame.sp) for frame in wrong.stack.frames]
    back = frames[:2] == [here, (wrong.state.registers[arch.ra], here[1])] and frames[2:] in ([], callers)
    if back and function(wrong, here[0]) == "swapcontext":
        return True
    known = {pc for pc, _ in callers}
    return any(function(wrong, pc) == "swapcontext" for pc, _ in frames[1:] if pc not in known)


def function(wrong: Wrong, pc: int) -> str:
    module = wrong.target.modules.find(pc)
    symbol = Symbolizer().symbol(module, module.vaddr(pc)) if module else None
    return symbol.name if symbol else ""


EXCEPTIONS: dict[str, Callable[[Wrong], bool]] = {
    # as on x86-64: the tables of AArch64's longjmp and setcontext give the jump's target as the caller
    "jumping": is_jumping,
    # __start_context, to which a coroutine returns, jumps to setcontext: this is no call, but its address is
    # still in the return address register
    "start_context": is_end_of_coroutine,
    # AArch64's swapcontext puts the address of its own end there (unless control stacks are guarded), and the
    # next swapcontext returns to that place without a call
    "swapcontext": is_in_swapcontext,
    # the table of AArch64's _start gives it a caller, but it has none
    "start": is_start,
}
EXPECTED = {
    (S390X, "contexts"): {"start_context"},
    (AARCH64, "longjmp"): {"jumping"},
    (AARCH64, "contexts"): {"jumping", "start_context", "swapcontext"},
}


def explain(wrong: Wrong) -> str | None:
    return next((name for name, is_it in EXCEPTIONS.items() if is_it(wrong)), None)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_every_instruction(arch, scenario, tmp_path):
    program = str(FIXTURES / arch.name / "v3/steps")
    unexplained, counts, explained = [], Counter(), set()
    with started(arch, [program, scenario], tmp_path) as target:
        target.stop_at(*(functions(target, program)[name] for name in STOPS))
        unwinders = (Unwinder(target.modules), Unwinder(target.modules, NO_SFRAME))
        target.run(lambda above: above_of(unwinders[1].walk(target.snapshot(State(above, ())))))
        for state in target.steps():
            target.modules.allow_refresh()
            counts["known" if state.callers is not None else "unknown"] += 1
            if state.callers is None:
                continue
            for one in wrong(target, state, unwinders, counts):
                explained.add(why := explain(one))
                unexplained += [(one.stepper, one.stack, one.truth)] if why is None else []
    assert unexplained == []
    assert explained == EXPECTED.get((arch, scenario), set())
    assert counts["known"] >= 20
    assert counts["unknown"] <= 90
    assert counts[Found.SFRAME] >= 16
    assert bool(counts[Found.SIGNAL_FRAME]) == (scenario in SIGNALS)


def test_each_scenario_of_the_program_is_tested():
    text = (FIXTURES / "src/steps.c").read_text()
    table = text[text.index("} scenarios[] = {") :]
    assert {*re.findall(r'{"(\w+)", ', table)} - {"tail"} == {*SCENARIOS}
