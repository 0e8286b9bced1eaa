"""Steps from x86-64 code that no table describes: its own instructions say where the return address is.

The row is a guess with reasons (`rows.py` finds them): the return address must still follow a call, and all
tables are asked before.  Code in a file is read from the file; generated code from memory, later than the
registers.  The decoder is imported only when such code is met.
"""

from typing import TYPE_CHECKING

from sfsample.core.arch import AMD64, Arch
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.modules.module_map import ReadCode
from sfsample.unwind.row import UnwindRow

if TYPE_CHECKING:
    from sfsample.unwind.steppers.code_analysis.rows import GeneratedCode


class CodeStepper:
    """Steps by instructions.  `code` reads code that lies in no file; None: no row for such code."""

    found = Found.CODE

    def __init__(self, code: ReadCode | None = None) -> None:
        self._code = code
        self._generated: GeneratedCode | None = None

    def reading(self, code: ReadCode) -> "CodeStepper":
        """Return the stepper for the process whose code `code` reads."""
        return CodeStepper(code)

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that follows from the instructions."""
        if arch.machine != AMD64.machine:
            return None
        from sfsample.unwind.steppers.code_analysis.rows import CodeOfFile, GeneratedCode

        if module is None:
            if self._generated is None and self._code is not None:
                self._generated = GeneratedCode(self._code)
            return self._generated.row_at(frame.pc) if self._generated else None
        code_of_file = module.tables.code_analysis  # shared by all processes that map the file
        if not isinstance(code_of_file, CodeOfFile):
            code_of_file = module.tables.code_analysis = CodeOfFile(module.image)
        return code_of_file.row_at(module.vaddr(frame.pc), exact=frame.exact)
