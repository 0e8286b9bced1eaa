"""What a source of rows looks like to the unwinder.

Law: a stepper answers for one pc, from tables, code bytes and the architecture only; what it answers depends
on nothing else, so the unwinder may keep the answer.  None means "not mine", and the next stepper is asked.
"""

from typing import Protocol, runtime_checkable

from sfsample.arch import Arch
from sfsample.model import Frame
from sfsample.modules.generated import ReadCode
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow


class Stepper(Protocol):
    """A source of unwind rows.  `found` labels the frames that it steps to."""

    @property
    def found(self) -> str:
        """The label: a `Found`, or a word of a user's own."""
        ...

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row for `frame.pc`, whose code lies in `module` (None: in no ELF object)."""
        ...


@runtime_checkable
class ReadsCode(Protocol):
    """A stepper that wants code which lies in no file: each unwinder has one made for its process."""

    def reading(self, code: ReadCode) -> Stepper:
        """Return the stepper of a process; `code(address, size)` gives what can be read there, or less."""
        ...
