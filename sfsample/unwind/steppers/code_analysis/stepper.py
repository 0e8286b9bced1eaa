"""Code that no table describes: its own instructions say where the return address is.

Law: a guess with reasons (following.py finds them).  The return address must still follow a call, and all
tables are asked before.  x86-64 only.  Code in a file is read from the file; generated code from memory,
later than the registers.  Nothing that decodes is imported before such code is met.
"""

from sfsample.core.arch import AMD64, Arch
from sfsample.core.stack import Found, Frame
from sfsample.modules.generated_code import ReadCode
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow


class CodeStepper:
    """Steps by instructions.  `code` reads what lies in no file; without it that is not known."""

    found = Found.CODE

    def __init__(self, code: ReadCode | None = None) -> None:
        self._code = code

    def reading(self, code: ReadCode) -> "CodeStepper":
        """Return the stepper of the process whose code this reads."""
        return CodeStepper(code)

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that the instructions tell."""
        if arch.machine != AMD64.machine:
            return None
        from sfsample.unwind.steppers.code_analysis.rows import CodeOfFile, row_of_generated

        if module is None:
            return None if self._code is None else row_of_generated(self._code, frame.pc)
        known = module.tables.followed  # of all processes that map the file
        if not isinstance(known, CodeOfFile):
            known = module.tables.followed = CodeOfFile(module.image)
        return known.row_at(module.vaddr(frame.pc), exact=frame.exact)
