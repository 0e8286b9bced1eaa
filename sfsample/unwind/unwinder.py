"""The walk: order of the steppers, the row cache, and when to stop.

Law: the order of steppers is policy and stands here once.  A row depends only on the pc, so it is kept by
pc until the mappings change.  A step is believed only if it leads up the stack to executable memory;
otherwise the next stepper is asked.  Every walk ends with a reason.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sfsample.arch import Arch
from sfsample.model import Found, Frame, Registers, Stack, StopReason, ThreadSnapshot
from sfsample.modules.index import ModuleIndex
from sfsample.unwind.eh_frame import EhFrameStepper
from sfsample.unwind.frame_pointer import FramePointerStepper
from sfsample.unwind.null_call import NullCallStepper
from sfsample.unwind.row import Caller, UnwindRow, apply_row
from sfsample.unwind.sframe import SFrameStepper
from sfsample.unwind.signal_frame import SignalFrameStepper
from sfsample.unwind.stepper import Stepper

SIGNAL_FRAME: Final = SignalFrameStepper()
NULL_CALL: Final = NullCallStepper()
# Signal frames first: a trampoline may carry CFI or even an SFrame row that is of no use.  A null call
# answers only where no other but the frame pointer could, which would miss the function that made the call.
DEFAULT_STEPPERS: Final[tuple[Stepper, ...]] = (
    SIGNAL_FRAME,
    NULL_CALL,
    SFrameStepper(),
    EhFrameStepper(),
    FramePointerStepper(),
)
MAX_FRAMES: Final = 1024

_Rows = dict[tuple[int, bool], UnwindRow | None]


def _retry_order(rung: tuple[Stepper, _Rows]) -> int:
    return {Found.SFRAME: 1, Found.FRAME_POINTER: 2}.get(rung[0].found, 0)


class Step(NamedTuple):
    """A believed step to the caller."""

    found: Found
    cfa: int
    registers: Registers
    exact: bool


class Unwinder:
    """Walks the stacks of one process."""

    def __init__(
        self,
        index: ModuleIndex,
        steppers: Sequence[Stepper] = DEFAULT_STEPPERS,
        max_frames: int = MAX_FRAMES,
    ) -> None:
        self._index = index
        self._ladder = [(s, _Rows()) for s in steppers]
        self._max_frames = max_frames
        self._generation = index.generation

    def walk(self, snapshot: ThreadSnapshot) -> Stack:
        """Unwind a copy.

        SFrame recovers three registers only; where a later CFI row needs another one, the whole walk is
        done again with SFrame asked after CFI (and before a guess), and the better of the two is the answer.
        """
        self._forget_stale_rows()
        stack = self._walk(snapshot, self._ladder, retry=False)
        if stack.stop_reason is not StopReason.REGISTER_UNKNOWN:
            return stack
        again = self._walk(snapshot, sorted(self._ladder, key=_retry_order), retry=True)
        return again if again.stop_reason is StopReason.OUTERMOST else stack

    def _walk(self, snapshot: ThreadSnapshot, ladder: list[tuple[Stepper, _Rows]], *, retry: bool) -> Stack:
        arch, registers = snapshot.arch, snapshot.registers
        frame = Frame(registers[arch.pc], registers[arch.sp], None, Found.CONTEXT, exact=True)
        frames: list[Frame] = []
        while True:
            step = self._step(frame, registers, snapshot, ladder, retry=retry)
            if isinstance(step, StopReason):
                frames.append(frame)
                return self._end(tuple(frames), step, snapshot)
            frames.append(frame._replace(cfa=step.cfa))
            if len(frames) >= self._max_frames:
                return self._end(tuple(frames), StopReason.MAX_FRAMES, snapshot)
            registers = step.registers
            sp = registers.get(arch.sp, step.cfa)  # where it is unknown: not below the callee's CFA
            frame = Frame(registers[arch.pc], sp, None, step.found, step.exact)

    def _end(self, frames: tuple[Frame, ...], reason: StopReason, snapshot: ThreadSnapshot) -> Stack:
        if reason is StopReason.OUTERMOST:
            return Stack(frames, reason)
        if reason is StopReason.BAD_MEMORY and snapshot.bounded:
            reason = StopReason.STACK_COPY_ENDED
        last = frames[-1]
        module = self._index.find(last.lookup_pc)
        where = f"{module.path}+{module.vaddr(last.pc):#x}" if module else f"{last.pc:#x}"
        return Stack(frames, reason, where)

    def _step(
        self,
        frame: Frame,
        registers: Registers,
        snapshot: ThreadSnapshot,
        ladder: list[tuple[Stepper, _Rows]],
        *,
        retry: bool,
    ) -> Step | StopReason:
        arch, failure = snapshot.arch, StopReason.NO_ROW
        key = (frame.pc, frame.exact)
        for stepper, rows in ladder:
            try:
                row = rows[key]
            except KeyError:
                row = self._ask(stepper, frame, arch, rows)
            if row is None:
                continue
            if row.ra is None:
                return StopReason.OUTERMOST
            if row.guess and failure is StopReason.REGISTER_UNKNOWN and not retry:
                break  # doing the walk again may find the register; a guess would hide that it is missing
            caller = apply_row(row, registers, snapshot.memory, arch)
            if not isinstance(caller, StopReason):
                doubt = self._doubt(row, frame, caller, arch)
                if doubt is None:
                    return Step(stepper.found, caller.cfa, caller.registers, row.signal)
                if doubt is StopReason.OUTERMOST:
                    return doubt
                caller = doubt
            # the first stepper that knew the pc says why, a guess only if nobody did
            if failure is StopReason.NO_ROW and not row.guess:
                failure = caller
        if failure is StopReason.NO_ROW and self._index.mapping(frame.lookup_pc) is None:
            return StopReason.NO_MODULE
        return failure

    def _ask(self, stepper: Stepper, frame: Frame, arch: Arch, rows: _Rows) -> UnwindRow | None:
        module = self._index.find(frame.lookup_pc)
        self._forget_stale_rows()
        row = rows[frame.pc, frame.exact] = stepper.row_at(frame, module, arch)
        return row

    def _forget_stale_rows(self) -> None:
        if self._index.generation != self._generation:
            self._generation = self._index.generation
            for _, rows in self._ladder:
                rows.clear()

    def _doubt(self, row: UnwindRow, frame: Frame, caller: Caller, arch: Arch) -> StopReason | None:
        """Return why the step cannot be believed; OUTERMOST when it says that there is no caller."""
        pc, sp = caller.registers[arch.pc], caller.registers.get(arch.sp, caller.cfa)
        if pc == 0 and not row.signal:
            return StopReason.BAD_PC if row.guess else StopReason.OUTERMOST
        # a function may leave its stack alone while the return address is in a register: a leaf on AArch64,
        # and on AMD64 vfork, which keeps it in rdi
        leaf = frame.exact and row.ra is not None and not row.ra.deref
        if (sp < frame.sp if leaf else sp <= frame.sp) and not row.signal:
            return StopReason.NO_PROGRESS
        if row.signal:
            return None  # whatever was interrupted was interrupted, even a jump into nowhere
        if self._index.mapping(pc - 1) is None:
            return StopReason.BAD_PC
        if row.guess and not self._follows_call(pc):
            return StopReason.BAD_PC
        return None

    def _follows_call(self, address: int) -> bool:
        """Whether the instruction before `address` is a call; True where the code cannot be seen (JIT)."""
        module = self._index.find(address - 1)
        return module is None or module.follows_call(address)
