"""Steps from x86-64 code that no table describes; its instructions show where the return address is.

`rows.py` computes the row.  The row is a guess, so all tables are asked first, and the return address must
follow a call.  Code in a file is read from the file.  Generated code is read from memory, later
than the registers.  The decoder is imported when a walk first meets code without a table.
"""

from typing import TYPE_CHECKING

from sfsample.core.arch import AMD64, Arch
from sfsample.core.budget import INSTRUCTIONS
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.modules.module_map import ReadCode
from sfsample.unwind.row import UnwindRow

if TYPE_CHECKING:
    from sfsample.unwind.steppers.code_analysis.rows import CodeOfFile, GeneratedCode


class CodeStepper:
    """Steps by instructions.  `code` reads code that lies in no file; None: such code has no row."""

    found = Found.CODE

    def __init__(self, code: ReadCode | None = None) -> None:
        self._code = code
        self._generated: GeneratedCode | None = None

    def reading(self, code: ReadCode) -> "CodeStepper":
        """Return the stepper for one process; `code` reads the process's generated code."""
        return CodeStepper(code)

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that the instructions give, or None.  Raises OutOfTime."""
        if arch.machine != AMD64.machine:
            return None
        INSTRUCTIONS.check()
        if module is None:
            from sfsample.unwind.steppers.code_analysis.rows import GeneratedCode

            if self._generated is None and self._code is not None:
                self._generated = GeneratedCode(self._code)
            return self._generated.row_at(frame.pc) if self._generated else None
        return code_of(module).row_at(module.vaddr(frame.pc), exact=frame.exact)


def code_of(module: Module) -> "CodeOfFile":
    """Return the code of a module's file, shared by all processes that map the file."""
    from sfsample.unwind.steppers.code_analysis.rows import CodeOfFile

    code_of_file = module.tables.code_analysis
    if not isinstance(code_of_file, CodeOfFile):
        code_of_file = module.tables.code_analysis = CodeOfFile(module.image)
    return code_of_file
