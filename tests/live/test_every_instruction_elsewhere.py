"""At every instruction the stack is the true one: on AArch64 and s390x.

A program is stepped under qemu's user emulation from the loader's first instruction on, through relocation,
constructors, prologues, epilogues and lazy linkage stubs; `emulated` knows the truth.  (Single steps inside a
guest will not do: qemu's s390x falls through branches when it is stepped.)  Of the loader and libc one
instruction of so many is looked at, of the program each.
"""

import shutil
import tempfile
from pathlib import Path

import pytest

from scripts.lib.debian import KEYRING, filling, unpack_packages
from sfsample.arch import AARCH64, S390X
from sfsample.model import Found, StopReason
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, Unwinder
from tests.live.emulated import emulated

FIXTURES = Path(__file__).parents[1] / "fixtures"
CACHE = Path(tempfile.gettempdir()) / "sfsample-guests"
DEBIAN = {"aarch64": "arm64", "s390x": "s390x"}
NO_SFRAME = tuple(stepper for stepper in DEFAULT_STEPPERS if stepper.found is not Found.SFRAME)
STRIDE, OWN = 29, 600
# gcc's crtbegin.o and crti.o have no tables
UNTABLED = {"_init", "frame_dummy", "register_tm_clones", "call_weak_fn"}


def libraries(machine: str) -> Path:
    """Return Debian's libc of a machine, unpacked once."""
    for root in filling(CACHE / f"libc-{DEBIAN[machine]}"):
        unpack_packages(root, "trixie", "base-files", "libc6", architecture=DEBIAN[machine])
    return CACHE / f"libc-{DEBIAN[machine]}" / "files"


@pytest.mark.live
@pytest.mark.parametrize("arch", [AARCH64, S390X], ids=lambda arch: arch.name)
def test_every_instruction(arch, tmp_path):
    missing = [name for name in (f"qemu-{arch.name}", "apt-get", "dpkg-deb") if shutil.which(name) is None]
    missing += [] if Path(KEYRING).exists() else ["debian-archive-keyring"]
    if missing:
        pytest.skip(f"no {arch.name} program can run: {', '.join(missing)} not installed")
    program = str(FIXTURES / arch.name / "v3/target")
    names, wrong, own, seen = Symbolizer(), [], 0, 0
    with emulated(arch, libraries(arch.name), [program, "plt", "1"], tmp_path) as target:
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
            truth = [(pc, state.registers[arch.sp]), *reversed(state.callers)]
            for unwinder in unwinders:
                stack = unwinder.walk(target.snapshot(state))
                whole = stack.stop_reason is StopReason.OUTERMOST
                if not whole or [(f.pc, f.sp) for f in stack.frames] != truth:
                    symbol = names.symbol(module, module.vaddr(pc)) if module else None
                    wrong.append((symbol.name if symbol else hex(pc), stack, truth))
    assert own > OWN
    assert seen > 3000
    assert [one for one in wrong if one[0] not in UNTABLED] == []
