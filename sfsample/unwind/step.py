"""Steps from a frame to its caller: asks the steppers in order until a row leads to a plausible caller.

From an SFrame row to a caller, step 2 of 4: `StepperChain.step` gets the row at the pc from a stepper
(`steppers/sframe.py`), executes the row (`row.py`), and accepts the caller or asks the next stepper.

A caller is accepted if its frame lies above this frame and its pc is executable.  If the row is a guess, the
caller must be on the same stack, and its pc must follow a call; a direct call must lead to this function.

If no caller is accepted, the first stepper with a row gives the reason why the walk ends, except:

* A guess gives a reason only if the guess lacks a register.
* If the first row was wrong and the next row lacks a register, the reason is the missing register.  A walk
  with another order of steppers, or a walk of another capture, may have the register.

Coroutines and hand-made threads mark their first frame with a return address of zero, and chains of frame
pointers end in zero.  But a wrong row may read a zero from a local variable.  So a zero ends a stack only if
no word above the zero may be a return address: a caller would have left such a word.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sfsample.core.arch import AMD64, Arch
from sfsample.core.memory import Memory
from sfsample.core.rule import CFA
from sfsample.core.snapshot import (
    GO_CODE,
    GOROUTINE_HIGH,
    GOROUTINE_LOW,
    GOROUTINE_SP,
    SCHEDULER_SP,
    Registers,
    ThreadSnapshot,
)
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import Caller, UnwindRow, apply_row, first_missing, with_popped_words
from sfsample.unwind.rule_cache import RuleCache
from sfsample.unwind.stepper import PcRange, Stepper, reach_of
from sfsample.unwind.steppers.code_analysis.stepper import code_of

_WORD = 8  # bytes
_MAX_REJECTED_ROWS = 1000  # different rejected rows that are counted
_MAX_ANSWERS = 1 << 16  # cached answers of one stepper
_BLOCK_BYTES = 1024  # bytes of code in a block; for each block, a stepper's last range is cached
_SEARCH_BYTES = 4096  # bytes of stack searched above a zero; higher words may belong to another stack
_LOWEST_CODE = 4096  # no code lies in the first page
_REJECTED = (StopReason.NO_PROGRESS, StopReason.BAD_PC)
_EMPTY_RANGE: tuple[PcRange, None] = (0, 0), None


class Walk:
    """A walk in progress: the passed frames, the current frame, and the registers of that frame."""

    __slots__ = ("arch", "frame", "memory", "passed", "registers", "snapshot")

    def __init__(self, snapshot: ThreadSnapshot, *, exact: bool = True) -> None:
        """Begin at the snapshot's pc, which is a return address unless `exact` is True."""
        arch = snapshot.arch
        self.snapshot, self.arch, self.memory = snapshot, arch, snapshot.memory
        self.registers: Registers = snapshot.registers
        self.passed: list[Frame] = []
        self.frame = Frame(self.registers[arch.pc], self.registers[arch.sp], None, Found.CONTEXT, exact)

    def assuming(self, register: int, value: int) -> "Walk":
        """Return a copy of this walk that assumes the value of one more register."""
        other = Walk(self.snapshot._replace(assumed=True))
        other.frame, other.passed = self.frame, [*self.passed]
        other.registers = {**self.registers, register: value}
        return other


class Step(NamedTuple):
    """An accepted step to the caller."""

    found: str
    caller: Caller
    exact: bool


class CachedStepper:
    """A stepper, and its answers.

    Key: (pc, exact); for exact pcs in a module also the last `PcRange` in each KiB of code.  Valid in one
    generation of the module map.  Saves: a look-up in tables or code for each pc that a walk has met before.
    The ranges also save the look-up for other instructions of the same function.
    """

    def __init__(self, stepper: Stepper, modules: ModuleMap) -> None:
        self.found = stepper.found
        self._stepper, self._modules = stepper, modules
        self._generation = modules.generation
        self._rows: dict[tuple[int, bool], UnwindRow | None] = {}
        self._ranges: dict[int, tuple[PcRange, UnwindRow | None]] = {}  # key: pc // _BLOCK_BYTES

    def row_at(self, frame: Frame, arch: Arch) -> UnwindRow | None:
        """Return the stepper's answer at a frame's pc, in the present generation of the module map."""
        key = frame.pc, frame.exact
        if self._generation == self._modules.generation and key in self._rows:
            return self._rows[key]
        module = self._modules.find(frame.lookup_pc)  # may read the maps again and begin a new generation
        if self._generation != self._modules.generation or len(self._rows) >= _MAX_ANSWERS:
            self._generation, self._rows, self._ranges = self._modules.generation, {}, {}
        row = self._rows[key] = self._answer(frame, module, arch)
        return row

    def _answer(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        pc = frame.pc
        if not frame.exact or module is None:
            return self._stepper.row_at(frame, module, arch)
        (start, end), row = self._ranges.get(pc // _BLOCK_BYTES, _EMPTY_RANGE)
        if not start <= pc < end:
            row = self._stepper.row_at(frame, module, arch)
            mapping, (start, end) = self._modules.mapping(pc), reach_of(self._stepper, frame, module, arch)
            if mapping is not None:
                self._ranges[pc // _BLOCK_BYTES] = (max(start, mapping.start), min(end, mapping.end)), row
        return row

    def range_at(self, pc: int) -> PcRange:
        """Return the range of the answer for an exact pc: the last range of the block, or the pc alone."""
        pc_range, _ = self._ranges.get(pc // _BLOCK_BYTES, _EMPTY_RANGE)
        return pc_range if pc_range[0] <= pc < pc_range[1] else (pc, pc + 1)


class StepperChain:
    """Steppers in the order of a walk.  `last`: a guess may replace a row that lacks a register."""

    def __init__(self, modules: ModuleMap, steppers: Sequence[CachedStepper], *, last: bool) -> None:
        self._modules = modules
        self._steppers = steppers
        self._last = last
        self._rule_cache = RuleCache(modules.generation)
        self.rejected: Counter[str] = Counter()  # texts about rejected rows: their tables may be wrong

    @property
    def rule_cache(self) -> RuleCache:
        """The rule cache; a new one if executable mappings have changed, or if the old cache is full."""
        if self._rule_cache.generation != self._modules.generation or self._rule_cache.left <= 0:
            self._rule_cache = RuleCache(self._modules.generation)
        return self._rule_cache

    def step(self, walk: Walk) -> Step | StopReason:
        """Return the step to the caller, or the reason why the walk ends."""
        failure, rejected, is_first = StopReason.NO_ROW, "", True
        guess_left_copy = False
        # if the mappings change during the step, this cache is dropped, and the row of the step with it
        rules = self.rule_cache
        for stepper in self._steppers:
            row = stepper.row_at(walk.frame, walk.arch)
            if row is None:
                continue
            # a guess must not hide that the copy has ended, or that the next chain may have the register
            next_may_have_it = failure is StopReason.REGISTER_UNKNOWN and not self._last
            if row.guess and (next_may_have_it or failure is StopReason.STACK_COPY_ENDED):
                break
            outcome = self._execute(stepper, row, walk)
            if isinstance(outcome, Step) or outcome is StopReason.OUTERMOST:
                if rejected:
                    self._count_rejected(walk, rejected, failure, stepper)
                if is_first:
                    self._cache(rules, stepper, row, walk, outcome)
                return outcome
            if row.on_goroutine is not None:  # no other stepper knows the second stack
                return outcome
            is_first = False
            guess_left_copy |= row.guess and outcome is StopReason.STACK_COPY_ENDED
            if failure in _REJECTED and outcome is StopReason.REGISTER_UNKNOWN and not row.guess:
                self._count_rejected(walk, rejected, failure, stepper)
                failure = outcome
            if not rejected and (not row.guess or outcome is StopReason.REGISTER_UNKNOWN):
                failure, rejected = outcome, stepper.found
        if failure is StopReason.NO_ROW and guess_left_copy:
            return StopReason.STACK_COPY_ENDED
        unexplained = failure in (StopReason.NO_ROW, StopReason.REGISTER_UNKNOWN)
        if unexplained and self._modules.mapping(walk.frame.lookup_pc) is None:
            return StopReason.NO_MODULE
        return failure

    def row_lacking_register(self, walk: Walk) -> UnwindRow | None:
        """Return the row at the pc if its CFA or return address needs an unknown register; else None."""
        row, registers = self._certain_row(walk), walk.registers
        if row is None or row.ra is None:
            return None
        has_ra = row.ra.deref or row.ra.expression or row.ra.base == CFA or row.ra.base in registers
        return None if has_ra and row.cfa.base in registers else row

    def missing_word(self, walk: Walk) -> int | None:
        """Return the address of a word that the row at the pc needs and the copy lacks, or None."""
        row = self._certain_row(walk)
        return first_missing(row, walk.registers, walk.memory, walk.arch) if row else None

    def with_popped_words(self, snapshot: ThreadSnapshot) -> ThreadSnapshot:
        """Return the snapshot with the words that the innermost function has popped (`row.py`)."""
        walk = Walk(snapshot)
        table_row = self._certain_row(walk)
        caller = apply_row(table_row, walk.registers, walk.memory, walk.arch) if table_row else None
        if table_row is None or not isinstance(caller, Caller):
            return snapshot
        lacks_words = dict(table_row.registers).keys() - caller.registers.keys()
        code = next((stepper for stepper in self._steppers if stepper.found == Found.CODE), None)
        code_row = code.row_at(walk.frame, walk.arch) if code and lacks_words else None  # analysis is slow
        if code_row is None:
            return snapshot
        memory = with_popped_words(snapshot.memory, table_row, code_row, snapshot.registers, walk.arch)
        return snapshot._replace(memory=memory)

    def _certain_row(self, walk: Walk) -> UnwindRow | None:
        """Return the first row that is no guess; None if that row says that there is no caller."""
        rows = (stepper.row_at(walk.frame, walk.arch) for stepper in self._steppers)
        row = next((row for row in rows if row is not None and not row.guess), None)
        return row if row and row.ra else None

    def _cache(
        self, rules: RuleCache, stepper: CachedStepper, row: UnwindRow, walk: Walk, outcome: Step | StopReason
    ) -> None:
        """Add a row to `rules`, and the range in which all steppers up to `stepper` give the same answers."""
        frame = walk.frame
        caller_pc = outcome.caller.registers[walk.arch.pc] if isinstance(outcome, Step) else None
        rules.add(frame, row, stepper.found, walk.arch, caller_pc)
        if frame in rules and frame.exact and not row.guess:
            asked = self._steppers[: self._steppers.index(stepper) + 1]
            starts, ends = zip(*(asked_stepper.range_at(frame.pc) for asked_stepper in asked), strict=True)
            rules.add_range(frame.pc, (max(starts), min(ends)))

    def _count_rejected(self, walk: Walk, found: str, reason: StopReason, accepted: CachedStepper) -> None:
        """Count a rejected row.  If a register was unknown or assumed, the table may be right: no count."""
        may_be_wrong = reason is not StopReason.REGISTER_UNKNOWN and not walk.snapshot.assumed
        if may_be_wrong and len(self.rejected) < _MAX_REJECTED_ROWS:
            where = place(walk.frame, self._modules)
            self.rejected[f"{found} not believed ({reason}), {accepted.found} instead: {where}"] += 1

    def _execute(self, stepper: CachedStepper, row: UnwindRow, walk: Walk) -> Step | StopReason:
        if row.ra is None:
            return StopReason.OUTERMOST
        fp, is_convention = walk.arch.fp, row.guess and stepper.found is not Found.CODE
        on_chain = is_convention and row.cfa.base == fp and walk.frame.found is stepper.found
        if on_chain and walk.registers.get(fp) == 0:  # zero ends a chain of frame pointers (ABIs)
            return self._outermost_if_stack_may_end(walk.frame.sp, walk)
        if row.on_goroutine is not None:
            low, high = (walk.registers.get(number) for number in (GOROUTINE_LOW, GOROUTINE_HIGH))
            runtime = self._modules.find(walk.registers.get(GO_CODE, walk.frame.lookup_pc))
            if low is None or high is None or runtime is not self._modules.find(walk.frame.lookup_pc):
                return StopReason.REGISTER_UNKNOWN
            row = row.on_goroutine if low <= walk.frame.sp < high else row
            if not high and row.cfa.base == GOROUTINE_SP:  # thread that runs the scheduler
                return StopReason.OUTERMOST
        registers, extra = walk.registers, _return_register_of_leaf(row, walk)
        if extra is not None:
            registers = {extra: walk.snapshot.registers[extra], **registers}
        caller = apply_row(row, registers, walk.memory, walk.arch)
        if isinstance(caller, StopReason):
            cut_off = caller is StopReason.BAD_MEMORY and self._is_beyond_copy(row, walk)
            return StopReason.STACK_COPY_ENDED if cut_off else caller
        if row.switches:
            rejection = self._why_switch_rejected(row, caller, walk)
        elif not row.signal:
            rejection = self._why_rejected(row, caller, walk)
        elif row.guess and self._modules.mapping(caller.registers[walk.arch.pc]) is None:
            rejection = StopReason.BAD_PC
        else:
            # a signal may interrupt code on any stack, even a jump to an unmapped address
            interrupted = caller.registers[walk.arch.pc], caller.registers[walk.arch.sp]
            is_repeated = any((f.pc, f.sp) == interrupted for f in (walk.frame, *walk.passed))
            rejection = StopReason.NO_PROGRESS if is_repeated else None
        return rejection or Step(stepper.found, caller, row.signal)

    def _why_switch_rejected(self, row: UnwindRow, caller: Caller, walk: Walk) -> StopReason | None:
        """Return the reason to reject a caller on another stack: its pc, or its stack; None: accepted."""
        pc, sp, registers = caller.registers[walk.arch.pc], caller.registers[walk.arch.sp], walk.registers
        is_goroutine = registers.get(GOROUTINE_LOW, 0) < sp <= registers.get(GOROUTINE_HIGH, 0)
        stays = row.cfa.base == walk.arch.fp and sp > walk.frame.sp  # the scheduler itself asks the vDSO
        is_stack = is_goroutine or stays or row.cfa.base == SCHEDULER_SP  # this one had the return address
        if is_stack and self._modules.mapping(pc - 1) is not None:
            return None
        return StopReason.BAD_PC if GOROUTINE_LOW in registers else StopReason.REGISTER_UNKNOWN

    def _is_beyond_copy(self, row: UnwindRow, walk: Walk) -> bool:
        """Return True if the word that `row` lacks lies on this stack, above the end of the copy."""
        if not walk.snapshot.bounded:
            return False
        missing = first_missing(row, walk.registers, walk.memory, walk.arch)
        stack = self._modules.any_mapping(walk.frame.sp)
        return missing is not None and missing >= walk.frame.sp and (stack is None or missing < stack.end)

    def _why_rejected(self, row: UnwindRow, caller: Caller, walk: Walk) -> StopReason | None:
        """Return the reason to reject `caller`; OUTERMOST: the frame has no caller; None: accepted."""
        arch, frame = walk.arch, walk.frame
        pc, sp = caller.registers[arch.pc], caller.registers[arch.sp]
        if pc == 0:
            if row.guess:
                return StopReason.BAD_PC
            # an expression that gives zero declares the end of the stack; a zero in memory may be a variable
            declared = row.ra is not None and bool(row.ra.expression) and not row.ra.deref
            return StopReason.OUTERMOST if declared else self._outermost_if_stack_may_end(caller.cfa, walk)
        # sp may stay the same while the return address is in a register: in a leaf on AArch64, in vfork on
        # AMD64 (rdi).  A function of s390x may save r14 in its caller's frame, and sp still stays the same.
        in_register = row.ra is not None and not row.ra.deref
        is_leaf = frame.exact and (in_register or arch.pushed_ra is None)
        is_leaf |= _return_register_of_leaf(row, walk) is not None
        if sp < frame.sp if is_leaf else sp <= frame.sp:
            return StopReason.NO_PROGRESS
        if self._modules.mapping(pc - 1) is None:
            return StopReason.BAD_PC
        if not row.guess:
            return None
        is_believed = not self._is_other_stack(frame.sp, sp) and self._guess_may_lead_to(pc, frame, arch)
        return None if is_believed else StopReason.BAD_PC

    def _outermost_if_stack_may_end(self, above: int, walk: Walk) -> StopReason:
        is_end = is_stack_end(above, walk.memory, self._modules, walk.arch)
        return StopReason.OUTERMOST if is_end else StopReason.BAD_PC

    def _is_other_stack(self, below: int, above: int) -> bool:
        """Return True if both addresses are mapped, and some memory between them is not readable."""
        first, last = self._modules.any_mapping(below), self._modules.any_mapping(above)
        if first is None or last is None:  # stack that has grown since the last refresh
            return False
        between = [m for m in self._modules.mappings if first.start <= m.start <= last.start and m.readable]
        return sum(m.end - m.start for m in between) < last.end - first.start

    def call_may_lead_to(self, frame: Frame, return_address: int) -> bool:
        """Return False if the call before `return_address` cannot lead to the function of `frame`.

        A call leads to its target, and to functions to which the target jumps (tail calls).  Calls through
        pointers may lead anywhere, and so may code that lies in no file.  If the target jumps through
        pointers, the answer is True only if no table describes the target, or a GOT slot may lead to `frame`.
        """
        target, callee = self._modules.call_target(return_address), self._modules.find(frame.lookup_pc)
        module = self._modules.find(target) if target is not None else None
        if target is None or module is None or callee is None or target == frame.pc:
            return True
        start = module.function_start(target)
        if start is not None and start == callee.function_start(frame.lookup_pc):
            return True
        if module.image.machine != AMD64.machine:  # only x86-64 code is analysed
            return start is None
        runs = None
        if module is callee:
            runs = code_of(module).runs_from(module.vaddr(target), module.vaddr(frame.pc))
        may_run = start is None if runs is None else runs
        return may_run or self._jumps_to_file(module, target, callee, frame)

    def _jumps_to_file(self, module: Module, target: int, callee: Module, frame: Frame) -> bool:
        """Return True if the function at `target` may jump through the GOT to the function of `frame`."""
        for slot in code_of(module).slots_from(module.vaddr(target)):
            entry = self._modules.word(module.address(slot), module.image.byteorder)
            if entry is None:  # memory that a core file lacks
                return True
            if self._modules.find(entry) is callee:
                vaddr, pc = callee.vaddr(entry), callee.vaddr(frame.pc)
                if code_of(callee).runs_from(vaddr, pc) is not False:
                    return True
        return False

    def _guess_may_lead_to(self, pc: int, frame: Frame, arch: Arch) -> bool:
        """Return True if a guess may lead from `frame` to `pc`.

        `pc` must follow a call that may lead to the frame's function.  Or it lies in unreadable code, in code
        where stacks begin, or in a signal trampoline, which a handler enters without a call.
        """
        if self._modules.may_be_returned_to(pc) and self.call_may_lead_to(frame, pc):
            return True
        frame = Frame(pc, 0, None, Found.CONTEXT, exact=False)  # a row depends on the pc alone
        rows = (stepper.row_at(frame, arch) for stepper in self._steppers)
        return any(row is not None and (row.ra is None or row.signal) for row in rows)


def _return_register_of_leaf(row: UnwindRow, walk: Walk) -> int | None:
    """Return the register in which the caller of the innermost leaf has its own return address, or None.

    Caller and leaf share a private convention.  Some functions of glibc on AArch64 call the leaf
    __libc_arm_za_disable while their own return address is in x13.
    """
    ra, from_leaf = row.ra, len(walk.passed) == 1 and walk.frame.sp == walk.passed[0].sp
    if ra is None or not from_leaf or ra.deref or ra.expression or ra.base in (CFA, walk.arch.ra):
        return None
    return ra.base if ra.base in walk.snapshot.registers else None


def is_stack_end(above: int, memory: Memory, modules: ModuleMap, arch: Arch) -> bool:
    """Return True if a stack may end at the word below `above`; unreadable code counts as a caller."""
    for address in range(above, above + _SEARCH_BYTES, _WORD):
        word = memory.word(address)
        if word is None:
            return True
        pc = word & arch.ra_mask
        mapping = modules.any_mapping(pc - 1) if pc > _LOWEST_CODE else None
        if mapping is not None and mapping.executable and modules.may_be_returned_to(pc):
            return False
    return True


def place(frame: Frame, modules: ModuleMap) -> str:
    """Return the module and the vaddr of a frame's pc, for messages."""
    module = modules.find(frame.lookup_pc)
    return f"{module.path}+{module.vaddr(frame.pc):#x}" if module else f"{frame.pc:#x}"
