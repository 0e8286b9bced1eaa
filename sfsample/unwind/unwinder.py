"""Walks stacks; knows the order of the steppers, and repeats a walk if another order may get further.

From an SFrame row to a caller, step 1 of 4: `Unwinder.walk` repeats `StepperChain.step` (`step.py`) for the
innermost frame, its caller, and so on, until a step returns the reason why the walk ends.  Before each step,
the walk passes frames with cached rows (`rule_cache.py`, `walk_cache.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from sfsample.core.arch import AMD64, Arch
from sfsample.core.checkpoint import OutOfTime, checkpoint
from sfsample.core.memory import words_at
from sfsample.core.snapshot import GO_CODE, GOROUTINE_HIGH, GOROUTINE_LOW, ThreadSnapshot
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.core.walk_limits import DEFAULT_ORDER, MAX_FRAMES
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.frame_search import candidate_walks
from sfsample.unwind.row import Caller, apply_row
from sfsample.unwind.step import CachedStepper, Step, StepperChain, Walk, place
from sfsample.unwind.stepper import Stepper, for_process
from sfsample.unwind.steppers.cfi import CfiStepper
from sfsample.unwind.steppers.code_analysis.stepper import CodeStepper
from sfsample.unwind.steppers.conventions import FramePointerStepper, NullCallStepper
from sfsample.unwind.steppers.go import GoStepper
from sfsample.unwind.steppers.known_code import PltStepper, SignalFrameStepper, StartStepper
from sfsample.unwind.steppers.sframe import SFrameStepper

SIGNAL_FRAME: Final = SignalFrameStepper()
NULL_CALL: Final = NullCallStepper()
START: Final = StartStepper()
# Steppers that are always asked first.  SIGNAL_FRAME and START recognize code by its bytes, because tables
# may be wrong (a signal trampoline may have CFI, or even an SFrame row).  NULL_CALL recognizes a call to an
# address without code, where the frame pointer would skip the calling function.
ALWAYS: Final[tuple[Stepper, ...]] = (SIGNAL_FRAME, NULL_CALL, START)
# Steppers that the user chooses with `--unwind`, in the user's order.
CHOICES: Final[dict[str, tuple[Stepper, ...]]] = {
    "sframe": (SFrameStepper(),),
    "eh_frame": (GoStepper(), CfiStepper(), CfiStepper(debug=True), PltStepper()),
    "frame_pointer": (CodeStepper(), FramePointerStepper()),
}


def choose_steppers(order: Iterable[str | Stepper]) -> tuple[Stepper, ...]:
    """Return the steppers in order.  A name is a key of `CHOICES`; with a name, `ALWAYS` comes first."""
    order = tuple(order)
    always = ALWAYS if any(isinstance(entry, str) for entry in order) else ()
    chosen = (CHOICES[entry] if isinstance(entry, str) else (entry,) for entry in order)
    return (*always, *chain.from_iterable(chosen))


DEFAULT_STEPPERS: Final = choose_steppers(DEFAULT_ORDER)
_MAX_ASSUMED_REGISTERS = 2  # registers that one walk of `Unwinder.search` assumes
# ranks of the steppers that a repeated walk asks last
_RANKS: Final[dict[str, int]] = {Found.SFRAME: 1, Found.FRAME_POINTER: 2}


class Unwinder:
    """Walks the stacks of one process.

    `_chain` asks the steppers in the user's order.  SFrame recovers only pc, sp and fp, so a walk may lack a
    register.  In this case, `_cfi_chain`, which asks SFrame after CFI, repeats the walk.
    """

    def __init__(
        self, modules: ModuleMap, steppers: Iterable[str | Stepper] = DEFAULT_ORDER,
        max_frames: int = MAX_FRAMES,
    ) -> None:  # fmt: skip
        self._modules = modules
        self._max_frames = max_frames
        cached = [CachedStepper(for_process(s, modules), modules) for s in choose_steppers(steppers)]
        self._chain = StepperChain(modules, cached, last=False)
        cfi_first = sorted(cached, key=lambda stepper: _RANKS.get(stepper.found, 0))
        self._cfi_chain = StepperChain(modules, cfi_first, last=True)

    def prepare(self, arch: Arch) -> None:
        """Import code that the first walks may need: 20 ms would be too long while a thread is stopped."""
        if arch.machine == AMD64.machine:
            from sfsample.unwind.steppers.code_analysis import rows  # noqa: F401
        self._modules.open_first()

    def walk(self, snapshot: ThreadSnapshot) -> Stack:
        """Unwind a snapshot; repeat the walk if mappings changed, as it may have used an unmapped library."""
        generation = self._modules.generation
        stack = self._walk_best(snapshot)
        return stack if self._modules.generation == generation else self._walk_best(snapshot)

    def walk_parked(self, snapshot: ThreadSnapshot, *, exact: bool) -> Stack:
        """Unwind the own stack of a goroutine that no thread runs; not `exact`: pc is a return address."""
        walk = Walk(snapshot, exact=exact)
        own = {
            GO_CODE: walk.frame.pc,
            GOROUTINE_LOW: 0,
            GOROUTINE_HIGH: 0,
        }  # no other runtime, no other stack
        walk.registers = walk.registers | own
        return self._continue(walk, self._chain)

    def search(self, snapshot: ThreadSnapshot, stack: Stack) -> Stack:
        """Return a better stack than `stack`, which lacked a register; `stack` itself if no search succeeds.

        A candidate is a possible value of the register (`frame_search.py`).  A candidate is accepted if its
        walk reaches the outermost frame through calls only, and no walk of another candidate does.
        """
        walk = Walk(snapshot)
        reason = self._continue(walk, self._cfi_chain).stop_reason
        if reason is not StopReason.REGISTER_UNKNOWN:
            return stack
        complete = [*self._complete_stacks(walk, _MAX_ASSUMED_REGISTERS)]
        return complete[0] if len(complete) == 1 else stack

    def resume(self, snapshot: ThreadSnapshot, stack: Stack, cfa: int) -> Stack:
        """Return `stack`, continued from its last frame, whose CFA the caller knows by other means.

        If the walk gains no frame, or gains a return address that follows no call, return `stack` itself.
        """
        arch, caller = snapshot.arch, snapshot.memory.word(cfa - 8)
        if arch.machine != AMD64.machine or caller is None or not self._modules.may_be_returned_to(caller):
            return stack
        walk = Walk(snapshot)
        walk.passed = [*stack.frames[:-1], stack.frames[-1]._replace(cfa=cfa)]
        walk.frame = Frame(caller, cfa, None, Found.SCAN, exact=False)
        walk.registers = {arch.pc: caller, arch.sp: cfa}
        resumed = self._continue(walk, self._cfi_chain)
        gained = resumed.frames[len(stack.frames) : -1]
        is_likely = all(frame.exact or self._modules.may_be_returned_to(frame.pc) for frame in gained)
        return resumed if is_likely and len(resumed.frames) > len(stack.frames) else stack

    @property
    def rejected_rows(self) -> Counter[str]:
        """Texts about rejected rows, with counts; the row of another stepper was accepted instead."""
        return self._chain.rejected + self._cfi_chain.rejected

    def _walk_best(self, snapshot: ThreadSnapshot) -> Stack:
        """Return the stack by `_chain`; if that walk lacked a register, the better stack of both chains.

        The walk by `_cfi_chain` also has the words that the innermost function has popped.
        """
        if not snapshot.registers[snapshot.arch.pc] and not snapshot.registers[snapshot.arch.sp]:
            return Stack((), StopReason.OUTERMOST)  # thread that runs in the kernel only (io_uring, vhost)
        stack = self._continue(Walk(snapshot), self._chain)
        if stack.stop_reason is not StopReason.REGISTER_UNKNOWN:
            return stack
        repeated = self._continue(Walk(self._cfi_chain.with_popped_words(snapshot)), self._cfi_chain)
        is_better = repeated.stop_reason is StopReason.OUTERMOST or len(repeated.frames) > len(stack.frames)
        return repeated if is_better else stack

    def _continue(self, walk: Walk, chain: StepperChain) -> Stack:
        while not self._pass_cached_frames(walk, chain):
            try:
                checkpoint()
                step = chain.step(walk)
            except OutOfTime:
                step = StopReason.OUT_OF_TIME
            if isinstance(step, StopReason):
                return self._ended(walk, chain, step)
            _advance(walk, step)
            if len(walk.passed) >= self._max_frames:
                walk.frame = walk.passed.pop()
                return self._ended(walk, chain, StopReason.MAX_FRAMES)
        return Stack((*walk.passed, walk.frame), StopReason.OUTERMOST)

    def _pass_cached_frames(self, walk: Walk, chain: StepperChain) -> bool:
        """Walk as far as the rule cache leads; return True if the walk has reached the outermost frame."""
        rules, words = chain.rule_cache, words_at(walk.memory, walk.frame.sp)
        if words is None:
            return rules.is_outermost(walk.frame)
        fp, max_steps = walk.registers.get(walk.arch.fp), self._max_frames - 1 - len(walk.passed)
        passed, walk.frame = rules.walk(walk.frame, fp, words, max_steps)
        walk.passed += passed
        if rules.is_outermost(walk.frame):
            return True
        for frame in passed:
            checkpoint()
            caller = apply_row(rules.row_of(frame), walk.registers, walk.memory, walk.arch)
            assert isinstance(caller, Caller)  # noqa: S101 - the rule cache has read the same words
            walk.registers = caller.registers
        return False

    def _ended(self, walk: Walk, chain: StepperChain, reason: StopReason) -> Stack:
        missing = chain.missing_word(walk) if reason is StopReason.BAD_MEMORY else None
        # a signal handler may run on its own stack; then the stack of the interrupted code was not copied
        if reason is StopReason.NO_ROW and walk.memory.word(walk.frame.sp) is None:
            missing = walk.frame.sp
        where = None if reason is StopReason.OUTERMOST else place(walk.frame, self._modules)
        return Stack((*walk.passed, walk.frame), reason, where, missing)

    def _complete_stacks(self, walk: Walk, max_assumed: int) -> Iterator[Stack]:
        """Yield the stacks that reach the outermost frame with an assumed value of the unknown register."""
        row = self._cfi_chain.row_lacking_register(walk)
        for candidate in candidate_walks(walk, row, self._modules) if row else ():
            step = self._cfi_chain.step(candidate)
            if isinstance(step, StopReason):
                continue
            _advance(candidate, step._replace(found=Found.SCAN))
            first_gained = len(candidate.passed)
            stack = self._continue(candidate, self._cfi_chain)
            edges = zip(stack.frames[first_gained - 1 :], stack.frames[first_gained:-1], strict=False)
            if not all(caller.exact or self._is_edge(callee, caller) for callee, caller in edges):
                continue
            if stack.stop_reason is StopReason.OUTERMOST:
                yield stack
            elif stack.stop_reason is StopReason.REGISTER_UNKNOWN and max_assumed > 1:
                yield from self._complete_stacks(candidate, max_assumed - 1)

    def _is_edge(self, callee: Frame, caller: Frame) -> bool:
        """Return False if `caller` cannot have called `callee`.  In Go, other targets of a call are rare."""
        leads = caller.found != Found.GO or self._cfi_chain.call_may_lead_to(callee, caller.pc)
        return leads and self._modules.may_be_returned_to(caller.pc)


def _advance(walk: Walk, step: Step) -> None:
    cfa, registers = step.caller
    # the kernel puts the trampoline's address on the stack as a return address, but no call precedes it
    exact = walk.frame.exact or step.found == Found.SIGNAL_FRAME
    walk.passed.append(walk.frame._replace(cfa=cfa, exact=exact))
    walk.registers = registers
    walk.frame = Frame(registers[walk.arch.pc], registers[walk.arch.sp], None, step.found, step.exact)
