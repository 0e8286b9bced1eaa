"""At every instruction the stack is the true one: on AArch64 and s390x.

Programs are stepped under qemu's user emulation: one from the loader's first instruction on, through
relocation, constructors and lazy linkage stubs (of the loader and libc one instruction of so many is looked
at), and on s390x one through each of its scenarios: signals, jumps out of functions, coroutines, a thread.
`emulated` knows the truth.  (Single steps inside a guest will not do: qemu's s390x falls through branches
when it is stepped.)
"""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.lib.debian import KEYRING, filling, unpack_packages
from sfsample.arch import AARCH64, S390X, Arch
from sfsample.model import Found, Stack, StopReason
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, Unwinder
from tests.live.emulated import Emulated, State, emulated
from tests.live.shadow import Entry

pytestmark = pytest.mark.live

FIXTURES = Path(__file__).parents[1] / "fixtures"
CACHE = Path(tempfile.gettempdir()) / "sfsample-guests"
DEBIAN = {"aarch64": "arm64", "s390x": "s390x"}
NO_SFRAME = tuple(stepper for stepper in DEFAULT_STEPPERS if stepper.found is not Found.SFRAME)
ARCHES = (AARCH64, S390X)
STRIDE, OWN = 29, 600
STOPS = ("stop", "skip", "nested", "return_from_null", "note")  # where signals are handled, too
SIGNALS = ("signal", "alternate", "nested", "raised", "null")
SCENARIOS = ("frames", "lazy", *SIGNALS, "longjmp", "contexts", "threads")
# gcc's crtbegin.o and crti.o have no tables
UNTABLED = {"_init", "frame_dummy", "register_tm_clones", "call_weak_fn"}


def libraries(machine: str) -> Path:
    """Return Debian's libc of a machine, unpacked once."""
    for root in filling(CACHE / f"libc-{DEBIAN[machine]}"):
        unpack_packages(root, "trixie", "base-files", "libc6", architecture=DEBIAN[machine])
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


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_the_start_of_a_program(arch, tmp_path):
    program = str(FIXTURES / arch.name / "v3/target")
    names, wrong, own, seen = Symbolizer(), [], 0, 0
    with started(arch, [program, "plt", "1"], tmp_path) as target:
        unwinders = (Unwinder(target.index), Unwinder(target.index, NO_SFRAME))
        for number, state in enumerate(target.steps()):
            target.index.expire()
            pc = state.registers[arch.pc]
            module = target.index.find(pc)
            is_own = module is not None and module.path == program
            own += is_own
            if own > OWN:
                break
            if number % STRIDE and not is_own:
                continue
            seen += 1
            for unwinder in unwinders:
                stack = unwinder.walk(target.snapshot(state))
                if not is_whole(stack, target.truth(state)):
                    symbol = names.symbol(module, module.vaddr(pc)) if module else None
                    wrong.append((symbol.name if symbol else hex(pc), stack, target.truth(state)))
    assert own > OWN
    assert seen > 3000
    assert [one for one in wrong if one[0] not in UNTABLED] == []


def functions(target: Emulated, program: str) -> dict[str, int]:
    """Return where the functions of a program are."""
    names = Symbolizer()
    target.index.refresh()
    module = next(module for module in target.index.open_all() if module.path == program)
    found = ((names.symbol(module, fde.start), fde.start) for fde in module.eh_frame.fdes())
    return {symbol.name: module.address(start) for symbol, start in found if symbol}


def above_of(stack: Stack) -> list[Entry]:
    """Return the callers of where a scenario begins, outermost first; they are libc's, and walked."""
    assert stack.stop_reason is StopReason.OUTERMOST
    assert len(stack.frames) >= 4  # stop, main, libc, _start
    return [Entry(f.sp, f.pc, f.sp) for f in reversed(stack.frames[1:])]


def is_end_of_coroutine(state: State, stack: Stack, truth: list[tuple[int, int]]) -> bool:
    """Whether only the caller is too much to which the return address register still points.

    glibc's __makecontext_ret, to which a coroutine has returned, jumps to setcontext: it calls nobody.
    """
    too_much = (state.registers[S390X.ra], state.registers[S390X.sp])
    return is_whole(stack, [*truth, too_much]) and len(truth) == 1


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_instruction(scenario, tmp_path):
    """Those outside the program are looked at, too."""
    program = str(FIXTURES / "s390x/v3/steps")
    wrong, counts = [], Counter()
    with started(S390X, [program, scenario], tmp_path) as target:
        target.stop_at(*(functions(target, program)[name] for name in STOPS))
        unwinders = (Unwinder(target.index), Unwinder(target.index, NO_SFRAME))
        target.run(lambda above: above_of(unwinders[1].walk(target.snapshot(State(above, ())))))
        for state in target.steps():
            target.index.expire()
            counts["settled" if state.callers is not None else "unsettled"] += 1
            for unwinder in unwinders if state.callers is not None else ():
                stack, truth = unwinder.walk(target.snapshot(state)), target.truth(state)
                counts.update(frame.found for frame in stack.frames)
                if not is_whole(stack, truth):
                    explained = is_end_of_coroutine(state, stack, truth)
                    counts["explained"] += explained
                    wrong += [] if explained else [(stack, truth)]
    assert wrong == []
    assert bool(counts["explained"]) == (scenario == "contexts")
    assert counts["settled"] >= 20
    assert counts["unsettled"] <= 10
    assert counts[Found.SFRAME] >= 16
    assert bool(counts[Found.SIGNAL_FRAME]) == (scenario in SIGNALS)


def test_the_scenarios_are_those_of_the_program():
    text = (FIXTURES / "src/steps.c").read_text()
    table = text[text.index("} scenarios[] = {") :]
    assert {*re.findall(r'{"(\w+)", ', table)} - {"tail"} == {*SCENARIOS}
