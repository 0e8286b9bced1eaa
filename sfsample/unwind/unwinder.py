"""The walk: which steppers there are, in which order, and when a walk is done again.

Law: the order of steppers is policy and stands here once.  Every walk ends with a reason.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from sfsample.core.arch import AMD64, Arch
from sfsample.core.checkpoint import checkpoint
from sfsample.core.memory import words_at
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.frame_search import suppositions
from sfsample.unwind.row import Caller, apply_row
from sfsample.unwind.step import CachedStepper, Step, StepperChain, Walk
from sfsample.unwind.stepper import Stepper, of_process
from sfsample.unwind.steppers.cfi import DebugFrameStepper, EhFrameStepper
from sfsample.unwind.steppers.code_analysis.stepper import CodeStepper
from sfsample.unwind.steppers.entry_code import StartStepper
from sfsample.unwind.steppers.frame_pointer import FramePointerStepper
from sfsample.unwind.steppers.leaf import LeafStepper
from sfsample.unwind.steppers.null_call import NullCallStepper
from sfsample.unwind.steppers.plt_stub import PltStepper
from sfsample.unwind.steppers.scan import ScanStepper
from sfsample.unwind.steppers.sframe import SFrameStepper
from sfsample.unwind.steppers.signal_frame import SignalFrameStepper

SIGNAL_FRAME: Final = SignalFrameStepper()
NULL_CALL: Final = NullCallStepper()
START: Final = StartStepper()
# Asked first: they know code by its bytes, where a table would be of no use (a trampoline may carry CFI or
# even an SFrame row), and a call to nowhere, where the frame pointer would miss the function that made it.
ALWAYS: Final[tuple[Stepper, ...]] = (SIGNAL_FRAME, NULL_CALL, START)
# What `--unwind` puts in order.
CHOICES: Final[dict[str, tuple[Stepper, ...]]] = {
    "sframe": (SFrameStepper(),),
    "eh_frame": (EhFrameStepper(), DebugFrameStepper(), PltStepper()),
    "frame_pointer": (CodeStepper(), LeafStepper(), FramePointerStepper()),
    "scan": (ScanStepper(),),  # not among the default ones
}
DEFAULT_STEPPERS: Final[tuple[Stepper, ...]] = (
    *ALWAYS,
    *(stepper for name in ("sframe", "eh_frame", "frame_pointer") for stepper in CHOICES[name]),
)
MAX_FRAMES: Final = 1024
_SUPPOSED = 2  # registers that are searched for in one walk
_ASKED_LAST: Final[tuple[str, ...]] = (
    Found.SFRAME,
    Found.FRAME_POINTER,
    Found.SCAN,
)  # when a walk is done again


class Unwinder:
    """Walks the stacks of one process."""

    def __init__(
        self,
        index: ModuleMap,
        steppers: Sequence[Stepper] = DEFAULT_STEPPERS,
        max_frames: int = MAX_FRAMES,
    ) -> None:
        self._index = index
        self._max_frames = max_frames
        rungs = [CachedStepper(of_process(stepper, index)) for stepper in steppers]
        self._ladder = StepperChain(index, rungs, last=False)
        self._second = StepperChain(index, sorted(rungs, key=_rank), last=True)

    def prepare(self, arch: Arch) -> None:
        """Load what first walks may need: 20 ms, in which a thread that was asked to stop might stand."""
        if arch.machine == AMD64.machine:
            from sfsample.unwind.steppers.code_analysis import rows as following  # noqa: F401
        self._index.open_first()

    def walk(self, snapshot: ThreadSnapshot) -> Stack:
        """Unwind a copy; again, when a miss has shown that the mappings are not what the rows were kept for.

        (An address that lies in a new library may have been in another one before.)
        """
        generation = self._index.generation
        stack = self._walk_best(snapshot)
        return stack if self._index.generation == generation else self._walk_best(snapshot)

    def _by_lane(self, snapshot: ThreadSnapshot) -> Stack | None:
        """Walk by rows that are known, if they lead to the outermost frame: nearly always."""
        ladder, arch, registers = self._ladder, snapshot.arch, snapshot.registers
        ladder.forget_stale()
        lane, sp = ladder.lane, registers[arch.sp]
        words = words_at(snapshot.memory, sp)
        if words is None:
            return None
        new = tuple.__new__  # a third of the time
        first = new(Frame, (registers[arch.pc], sp, None, Found.CONTEXT, True))
        passed, last = lane.run(first, registers.get(arch.fp), words, self._max_frames - 1)
        return new(Stack, ((*passed, last), StopReason.OUTERMOST, None, None)) if lane.is_end(last) else None

    def _walk_best(self, snapshot: ThreadSnapshot) -> Stack:
        """Walk; a second time where the first lacked a register.

        SFrame recovers three registers only; where a later CFI row needs another one, the whole walk is
        done again with SFrame asked after CFI (and before a guess), with what the innermost function has
        popped, and the better of the two is the answer.
        """
        quick = self._by_lane(snapshot)
        if quick is not None:
            return quick
        if not snapshot.registers[snapshot.arch.pc] and not snapshot.registers[snapshot.arch.sp]:
            return Stack((), StopReason.OUTERMOST)  # works for the kernel, and never was in user space
        stack = self._walk(snapshot, self._ladder)
        if stack.stop_reason is not StopReason.REGISTER_UNKNOWN:
            return stack
        again = self._walk(self._second.completed(snapshot), self._second)
        better = again.stop_reason is StopReason.OUTERMOST or len(again.frames) > len(stack.frames)
        return again if better else stack

    def search(self, snapshot: ThreadSnapshot, stack: Stack) -> Stack:
        """Return a better stack than one that lacked a register, if its frame can be found in the copy.

        It is believed if it is the only one that leads to the outermost frame, behind calls all the way.
        """
        walk = Walk(snapshot)
        reason = self._go(walk, self._second).stop_reason
        whole = [*self._whole(walk, _SUPPOSED)] if reason is StopReason.REGISTER_UNKNOWN else []
        return whole[0] if len(whole) == 1 else stack

    def _whole(self, walk: Walk, left: int) -> Iterator[Stack]:
        """Yield the stacks that reach the outermost frame with what may be in the lacking register."""
        row = self._second.lacking(walk)
        for supposed in suppositions(walk, row, self._index) if row else ():
            step = self._second.step(supposed)
            if isinstance(step, StopReason):
                continue
            _advance(supposed, step._replace(found=Found.SCAN))
            at = len(supposed.passed)
            stack = self._go(supposed, self._second)
            if not all(map(self._is_called_from, stack.frames[at:-1])):
                continue
            if stack.stop_reason is StopReason.OUTERMOST:
                yield stack
            elif stack.stop_reason is StopReason.REGISTER_UNKNOWN and left > 1:
                yield from self._whole(supposed, left - 1)

    def _is_called_from(self, frame: Frame) -> bool:
        module = self._index.find(frame.lookup_pc)
        return frame.exact or module is None or module.follows_call(frame.pc)

    @property
    def doubts(self) -> Counter[str]:
        """Answers that were not believed where another stepper's was, and how often: tables may be wrong."""
        both = self._ladder.doubts + self._second.doubts
        return Counter({
            f"{d.found} not believed ({d.reason}), {d.instead} instead: {self._place(d.pc, d.exact)}": count
            for d, count in both.items()
        })  # fmt: skip

    def _place(self, pc: int, exact: bool) -> str:
        module = self._index.find(pc if exact else pc - 1)
        return f"{module.path}+{module.vaddr(pc):#x}" if module else f"{pc:#x}"

    def _walk(self, snapshot: ThreadSnapshot, ladder: StepperChain) -> Stack:
        return self._go(Walk(snapshot), ladder)

    def _go(self, walk: Walk, ladder: StepperChain) -> Stack:
        ladder.forget_stale()
        while not self._run_ahead(walk, ladder):
            checkpoint()
            step = ladder.step(walk)
            if isinstance(step, StopReason):
                return self._end(walk, ladder, step)
            _advance(walk, step)
            if len(walk.passed) >= self._max_frames:
                walk.frame = walk.passed.pop()
                return self._end(walk, ladder, StopReason.MAX_FRAMES)
        return Stack((*walk.passed, walk.frame), StopReason.OUTERMOST)

    def _run_ahead(self, walk: Walk, ladder: StepperChain) -> bool:
        """Go on as far as rows are known and plain; True: to the outermost frame."""
        lane, words = ladder.lane, words_at(walk.memory, walk.frame.sp)
        if words is None:
            return lane.is_end(walk.frame)
        fp, room = walk.registers.get(walk.arch.fp), self._max_frames - 1 - len(walk.passed)
        passed, walk.frame = lane.run(walk.frame, fp, words, room)
        walk.passed += passed
        if lane.is_end(walk.frame):
            return True
        for frame in passed:
            checkpoint()
            caller = apply_row(lane.row(frame), walk.registers, walk.memory, walk.arch)
            assert isinstance(caller, Caller)  # noqa: S101 - our own invariant: the lane's law
            walk.registers = caller.registers
        return False

    def _end(self, walk: Walk, ladder: StepperChain, reason: StopReason) -> Stack:
        frames = (*walk.passed, walk.frame)
        if reason is StopReason.OUTERMOST:
            return Stack(frames, reason)
        missing = ladder.missing(walk) if reason is StopReason.BAD_MEMORY else None
        return Stack(frames, reason, self._place(walk.frame.pc, walk.frame.exact), missing)


def _advance(walk: Walk, step: Step) -> None:
    cfa, registers = step.caller
    # the kernel has put the trampoline's address on the stack: no call leads to the byte before it
    exact = walk.frame.exact or step.found == Found.SIGNAL_FRAME
    walk.passed.append(walk.frame._replace(cfa=cfa, exact=exact))
    walk.registers = registers
    sp = registers.get(walk.arch.sp, cfa)  # where it is unknown: not below the callee's CFA
    walk.frame = Frame(registers[walk.arch.pc], sp, None, step.found, step.exact)


def _rank(rung: CachedStepper) -> int:
    return _ASKED_LAST.index(rung.found) + 1 if rung.found in _ASKED_LAST else 0
