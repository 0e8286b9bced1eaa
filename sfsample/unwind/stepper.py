"""Defines the protocol of steppers, the sources of unwind rows.

A stepper answers for one pc.  The answer depends only on tables, code bytes and facts of the machine, so the
unwinder caches the answer.  None means "not mine": the unwinder asks the next stepper.
"""

from typing import Protocol

from sfsample.core.arch import Arch
from sfsample.core.stack import Frame
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow

# Run-time addresses [start, end) around an exact pc for which a stepper has the same answer (a row, or None).
# A plain tuple, because users' steppers return such a range from `reach`.
PcRange = tuple[int, int]
ALL_PCS: PcRange = (0, 1 << 64)


class Stepper(Protocol):
    """A source of unwind rows."""

    @property
    def found(self) -> str:
        """The label of the frames to which the stepper leads: a `Found`, or a word of the user's choice."""

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row for `frame.pc`, or None.  `module` is None if no ELF object is mapped there."""


def only_this_pc(frame: Frame) -> PcRange:
    """Return the range that has only this pc, as the answer may differ at the next address."""
    return frame.pc, frame.pc + 1


def reach_of(stepper: Stepper, frame: Frame, module: Module, arch: Arch) -> PcRange:
    """Return the range of a stepper's answer at an exact pc in `module`, by its optional method `reach`."""
    reach = getattr(stepper, "reach", None)
    pc_range: PcRange = only_this_pc(frame) if reach is None else reach(frame, module, arch)
    return pc_range


def for_process(stepper: Stepper, modules: ModuleMap) -> Stepper:
    """Return the stepper for one process, which the optional methods `reading` and `mapped` make.

    `reading` gets `ModuleMap.code`, which reads code that lies in no file; `mapped` gets `ModuleMap.is_code`.
    """
    bound = stepper
    for method_name, argument in (("reading", modules.code), ("mapped", modules.is_code)):
        method = getattr(bound, method_name, None)  # isinstance with a protocol would import `inspect`
        bound = bound if method is None else method(argument)
    return bound
