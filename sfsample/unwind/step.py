"""One step: the steppers in the order in which they are asked, and when one of them is believed.

Law: a row depends on the pc alone, so it is asked for once.  A step is believed only if it leads up the
stack to executable memory (and, for a guess, behind a call), or to a zero where it may end; otherwise the
answer is "not mine" and the next stepper is asked.  When nobody is believed, the first that knew the pc says
why; a guess says nothing but that a register is unknown, which another capture may know.  Where an answer was
wrong and the next stepper lacks a register, that is why: the other order, or another capture, may know it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA
from sfsample.core.snapshot import Registers, ThreadSnapshot
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import Caller, UnwindRow, apply_row, first_missing
from sfsample.unwind.rule_cache import RuleCache
from sfsample.unwind.stack_end import is_stack_end
from sfsample.unwind.stepper import PcRange, Stepper, reach_of

_WORD = 8
_MOST_DOUBTS = 1000
_BLOCK = 1024
_WRONG = (StopReason.NO_PROGRESS, StopReason.BAD_PC)
_NOWHERE: tuple[PcRange, None] = (0, 0), None


class Walk:
    """A walk on its way: the frames it has passed, and the one where it stands."""

    __slots__ = ("arch", "frame", "memory", "passed", "registers", "snapshot")

    def __init__(self, snapshot: ThreadSnapshot) -> None:
        arch = snapshot.arch
        self.snapshot, self.arch, self.memory = snapshot, arch, snapshot.memory
        self.registers: Registers = snapshot.registers
        self.passed: list[Frame] = []
        self.frame = Frame(self.registers[arch.pc], self.registers[arch.sp], None, Found.CONTEXT, exact=True)

    def supposing(self, register: int, value: int) -> "Walk":
        """Return a walk that stands at the same place and knows one register more."""
        other = Walk(self.snapshot._replace(assumed=True))
        other.frame, other.passed = self.frame, [*self.passed]
        other.registers = {**self.registers, register: value}
        return other


class Step(NamedTuple):
    """A believed step to the caller."""

    found: str
    caller: Caller
    exact: bool


class Doubt(NamedTuple):
    """An answer that was not believed, where another stepper's was."""

    pc: int
    exact: bool
    found: str
    reason: StopReason
    instead: str


class CachedStepper:
    """A stepper, and what it has answered for each (pc, exact)."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.found = stepper.found
        self.rows: dict[tuple[int, bool], UnwindRow | None] = {}
        self._reaches: dict[int, tuple[PcRange, UnwindRow | None]] = {}  # the last one of each block of code

    def clear(self) -> None:
        """Forget all answers."""
        self.rows.clear()
        self._reaches.clear()

    def ask(self, frame: Frame, index: ModuleMap, arch: Arch) -> UnwindRow | None:
        """Return the row at a pc; an exact one may lie where an answer that was given before reaches."""
        pc, module = frame.pc, index.find(frame.lookup_pc)
        if not frame.exact or module is None:
            return self.stepper.row_at(frame, module, arch)
        (low, high), row = self._reaches.get(pc // _BLOCK, _NOWHERE)
        if not low <= pc < high:
            row = self.stepper.row_at(frame, module, arch)
            mapping, (low, high) = index.mapping(pc), reach_of(self.stepper, frame, module, arch)
            if mapping is not None:
                self._reaches[pc // _BLOCK] = (max(low, mapping.start), min(high, mapping.end)), row
        return row

    def reach(self, pc: int) -> PcRange:
        """Return how far the answer at an exact pc reaches that was asked for last."""
        reach, _ = self._reaches.get(pc // _BLOCK, _NOWHERE)
        return reach if reach[0] <= pc < reach[1] else (pc, pc + 1)


class StepperChain:
    """Rungs in one order.  `last`: no other order will be tried after this one."""

    def __init__(self, index: ModuleMap, rungs: Sequence[CachedStepper], *, last: bool) -> None:
        self._index = index
        self._rungs = rungs
        self._last = last
        self._generation = index.generation
        self.lane = RuleCache()
        self.doubts: Counter[Doubt] = Counter()

    def forget_stale(self) -> None:
        """Drop all rows when an executable mapping has changed."""
        if self._index.generation != self._generation:
            self._generation = self._index.generation
            self.lane.clear()
            for rung in self._rungs:
                rung.clear()

    def step(self, walk: Walk) -> Step | StopReason:
        """Step from where the walk stands to the caller, or say why not."""
        failure, doubted, first = StopReason.NO_ROW, "", True
        for rung in self._rungs:
            row = self._row(rung, walk.frame, walk.arch)
            if row is None:
                continue
            if row.guess and not self._may_guess(failure):
                break
            outcome = self._outcome(rung, row, walk)
            if isinstance(outcome, Step) or outcome is StopReason.OUTERMOST:
                if doubted:
                    self._note(walk, doubted, failure, rung)
                if first:
                    caller = outcome.caller.registers[walk.arch.pc] if isinstance(outcome, Step) else None
                    self.lane.learn(walk.frame, row, rung.found, walk.arch, caller)
                    if self.lane.knows(walk.frame) and walk.frame.exact and not row.guess:
                        self.lane.widen(walk.frame.pc, self._reach(rung, walk.frame.pc))
                return outcome
            first = False
            if failure in _WRONG and outcome is StopReason.REGISTER_UNKNOWN and not row.guess:
                self._note(walk, doubted, failure, rung)
                failure = outcome
            if not doubted and (not row.guess or outcome is StopReason.REGISTER_UNKNOWN):
                failure, doubted = outcome, rung.found
        nobody = failure in (StopReason.NO_ROW, StopReason.REGISTER_UNKNOWN)
        if nobody and self._index.mapping(walk.frame.lookup_pc) is None:
            return StopReason.NO_MODULE
        return failure

    def _reach(self, last: CachedStepper, pc: int) -> PcRange:
        """Return the addresses around an exact pc for which those up to `last` answer the same."""
        reaches = [rung.reach(pc) for rung in self._rungs[: self._rungs.index(last) + 1]]
        lows, highs = zip(*reaches, strict=True)
        return max(lows), min(highs)

    def lacking(self, walk: Walk) -> UnwindRow | None:
        """Return the row that wants a register which is unknown, for the CFA or the return address."""
        row = self._told(walk)
        if row is None or row.ra is None:
            return None
        known = row.ra.deref or row.ra.expression or row.ra.base == CFA or row.ra.base in walk.registers
        return None if known and row.cfa.base in walk.registers else row

    def missing(self, walk: Walk) -> int | None:
        """Return the address of the word that is not in the copy, and without which nobody can go on."""
        row = self._told(walk)
        if row is None or row.ra is None:
            return None
        return first_missing(row, walk.registers, walk.memory, walk.arch)

    def completed(self, snapshot: ThreadSnapshot) -> ThreadSnapshot:
        """Return a copy with the words that the innermost function has popped, where its code tells them."""
        walk = Walk(snapshot)
        table, code = self._told(walk), (rung for rung in self._rungs if rung.found == Found.CODE)
        row = next((self._row(rung, walk.frame, walk.arch) for rung in code), None) if table else None
        if table is None or table.ra is None or row is None:
            return snapshot
        from sfsample.unwind.popped import with_popped  # seldom wanted

        return with_popped(snapshot, table, row)

    def _told(self, walk: Walk) -> UnwindRow | None:
        """Return the row of the first stepper that does not guess."""
        rows = (self._row(rung, walk.frame, walk.arch) for rung in self._rungs)
        return next((row for row in rows if row is not None and not row.guess), None)

    def _note(self, walk: Walk, doubted: str, reason: StopReason, instead: CachedStepper) -> None:
        """Count a doubt; that a register was unknown, or was only supposed, speaks against nobody."""
        speaks = reason is not StopReason.REGISTER_UNKNOWN and not walk.snapshot.assumed
        if speaks and len(self.doubts) < _MOST_DOUBTS:
            self.doubts[Doubt(walk.frame.pc, walk.frame.exact, doubted, reason, instead.found)] += 1

    def _may_guess(self, failure: StopReason) -> bool:
        """Whether a guess hides nothing: what a better walk would find, or that the copy has ended."""
        if failure is StopReason.REGISTER_UNKNOWN:
            return self._last
        return failure is not StopReason.STACK_COPY_ENDED

    def _row(self, rung: CachedStepper, frame: Frame, arch: Arch) -> UnwindRow | None:
        try:
            return rung.rows[frame.pc, frame.exact]
        except KeyError:
            self._index.find(frame.lookup_pc)  # which may find that the mappings have changed
            self.forget_stale()
            row = rung.rows[frame.pc, frame.exact] = rung.ask(frame, self._index, arch)
            return row

    def _outcome(self, rung: CachedStepper, row: UnwindRow, walk: Walk) -> Step | StopReason:
        """Execute a row; one that slides is moved up the stack until it is believed."""
        if row.ra is None:
            return StopReason.OUTERMOST
        if _ends_chain(rung, row, walk):
            return self._end_at_zero(walk.frame.sp, walk)
        outcome = self._believed(rung, row, walk)
        for _ in range(row.slides):
            if isinstance(outcome, Step):
                break
            row = row._replace(cfa=row.cfa._replace(offset=row.cfa.offset + _WORD))
            outcome = self._believed(rung, row, walk)
        return outcome

    def _believed(self, rung: CachedStepper, row: UnwindRow, walk: Walk) -> Step | StopReason:
        caller = apply_row(row, _known(row, walk), walk.memory, walk.arch)
        if isinstance(caller, StopReason):
            cut_off = caller is StopReason.BAD_MEMORY and self._is_cut_off(row, walk)
            return StopReason.STACK_COPY_ENDED if cut_off else caller
        if not row.signal:
            doubt = self._doubt(row, caller, walk)
        elif row.guess and self._index.mapping(caller.registers[walk.arch.pc]) is None:
            doubt = StopReason.BAD_PC
        else:
            doubt = _doubt_signal(caller, walk)
        return doubt or Step(rung.found, caller, row.signal)

    def _is_cut_off(self, row: UnwindRow, walk: Walk) -> bool:
        """Whether the word that is missing lies on this stack, above what was copied."""
        if not walk.snapshot.bounded:
            return False
        missing = first_missing(row, walk.registers, walk.memory, walk.arch)
        stack = self._index.any_mapping(walk.frame.sp)
        return missing is not None and missing >= walk.frame.sp and (stack is None or missing < stack.end)

    def _doubt(self, row: UnwindRow, caller: Caller, walk: Walk) -> StopReason | None:
        """Return why the step cannot be believed; OUTERMOST when it says that there is no caller."""
        arch, frame = walk.arch, walk.frame
        pc, sp = caller.registers[arch.pc], caller.registers.get(arch.sp, caller.cfa)
        if pc == 0:
            return self._doubt_zero(row, caller, walk)
        # a function may leave its stack alone while the return address is in a register (a leaf on AArch64,
        # on AMD64 vfork, which keeps it in rdi), and on s390x when it has saved that in its caller's frame
        kept = row.ra is not None and not row.ra.deref
        leaf = frame.exact and (kept or arch.pushed_ra is None)
        leaf |= _left_by_leaf(row, walk) is not None
        if sp < frame.sp if leaf else sp <= frame.sp:
            return StopReason.NO_PROGRESS
        believed = self._index.mapping(pc - 1) is not None and (
            not row.guess
            or (self._is_called(pc, frame.pc) if row.called else self._is_returned_to(pc, sp, arch))
        )
        return None if believed else StopReason.BAD_PC

    def _doubt_zero(self, row: UnwindRow, caller: Caller, walk: Walk) -> StopReason:
        """Judge a zero: a rule that computes it means it; on the stack it may be any variable."""
        if row.guess:
            return StopReason.BAD_PC
        computed = row.ra is not None and bool(row.ra.expression) and not row.ra.deref
        return StopReason.OUTERMOST if computed else self._end_at_zero(caller.cfa, walk)

    def _end_at_zero(self, above: int, walk: Walk) -> StopReason:
        bottom = is_stack_end(above, walk.memory, self._index, walk.arch)
        return StopReason.OUTERMOST if bottom else StopReason.BAD_PC

    def _is_called(self, return_address: int, pc: int) -> bool:
        """Whether the call before a return address leads to the function of `pc`, or to a stub."""
        caller, called = self._index.find(return_address - 1), self._index.find(pc)
        target = caller.call_target(return_address) if caller else None
        if target is None:
            return False
        if called is not None and called.is_entered_at(target, pc):
            return True
        stubs = self._index.find(target)
        return stubs is not None and stubs.is_stub(target)

    def _is_returned_to(self, pc: int, sp: int, arch: Arch) -> bool:
        """Whether a guess may lead here: behind a call, to where stacks begin, or to code we cannot see.

        Or to a signal trampoline, to which the handler returns and which has called nobody.
        """
        module = self._index.find(pc - 1)
        if module is None or module.follows_call(pc):
            return True
        frame = Frame(pc, sp, None, Found.CONTEXT, exact=False)
        rows = (self._row(rung, frame, arch) for rung in self._rungs)
        return any(row is not None and (row.ra is None or row.signal) for row in rows)


def _known(row: UnwindRow, walk: Walk) -> Registers:
    """Return the registers that a row may use."""
    number = _left_by_leaf(row, walk)
    return walk.registers if number is None else {number: walk.snapshot.registers[number], **walk.registers}


def _left_by_leaf(row: UnwindRow, walk: Walk) -> int | None:
    """Return where a table says that the return address stays while the innermost function, a leaf, runs.

    The two have a convention of their own: some functions of glibc on AArch64 call __libc_arm_za_disable with
    theirs in x13.
    """
    ra, innermost = row.ra, len(walk.passed) == 1 and walk.frame.sp == walk.passed[0].sp
    if ra is None or not innermost or ra.deref or ra.expression or ra.base in (CFA, walk.arch.ra):
        return None
    return ra.base if ra.base in walk.snapshot.registers else None


def _ends_chain(rung: CachedStepper, row: UnwindRow, walk: Walk) -> bool:
    """Whether a chain of frame pointers has come to the zero in which the ABIs want it to end."""
    fp = walk.arch.fp
    on_chain = row.guess and row.cfa.base == fp and walk.frame.found is rung.found
    return on_chain and walk.registers.get(fp) == 0


def _doubt_signal(caller: Caller, walk: Walk) -> StopReason | None:
    """Whatever was interrupted was interrupted, on any stack, even a jump into nowhere: but only once."""
    here = caller.registers[walk.arch.pc], caller.registers.get(walk.arch.sp)
    again = any((frame.pc, frame.sp) == here for frame in (walk.frame, *walk.passed))
    return StopReason.NO_PROGRESS if again else None
