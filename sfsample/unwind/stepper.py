"""What a source of rows looks like to the unwinder.

Law: a stepper answers for one pc, from tables, code bytes and the architecture only; what it answers depends
on nothing else, so the unwinder may keep the answer.  None means "not mine", and the next stepper is asked.
"""

from typing import Protocol

from sfsample.core.arch import Arch
from sfsample.core.stack import Frame
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow

PcRange = tuple[int, int]  # from an address up to another
EVERYWHERE = (0, 1 << 64)


class Stepper(Protocol):
    """A source of unwind rows.  `found` labels the frames that it steps to."""

    @property
    def found(self) -> str:
        """The label: a `Found`, or a word of a user's own."""
        ...

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row for `frame.pc`, whose code lies in `module` (None: in no ELF object)."""
        ...


def here(frame: Frame) -> PcRange:
    """Return the reach of an answer that may be another one at the next address."""
    return frame.pc, frame.pc + 1


def reach_of(stepper: Stepper, frame: Frame, module: Module, arch: Arch) -> PcRange:
    """Return the addresses around an exact pc, of the same module, at which a stepper's answer is the same.

    A stepper may say so by a method `reach`; it spares asking it for each pc of a function.
    """
    reach = getattr(stepper, "reach", None)
    told: PcRange = here(frame) if reach is None else reach(frame, module, arch)
    return told


def of_process(stepper: Stepper, index: ModuleMap) -> Stepper:
    """Return the stepper for one process: what its methods make of what only the process can tell.

    `reading` is given a reader of code in no file, `mapped` what tells whether an address is executable.
    """
    made = stepper
    for method, told in (("reading", index.code), ("mapped", index.is_code)):
        of_this = getattr(made, method, None)  # isinstance with a protocol would import `inspect`
        made = made if of_this is None else of_this(told)
    return made
