"""Stubs of a procedure linkage table that no table describes (lld writes none).

Law: answers only for an exact pc in a stub that it knows by its bytes; stubs are as regular as the row that
each of their instructions has.

Source: AMD64 psABI section 5.2 (figure 5.2, and the IBT variant).
"""

from sfsample.arch import AMD64, Arch
from sfsample.model import CFA, Found, Frame, Rule
from sfsample.modules.module import Module
from sfsample.unwind.known_code import code, row_among
from sfsample.unwind.row import UnwindRow


def _row(pushed: int) -> UnwindRow:
    """Return the row after so many words were pushed upon the return address."""
    cfa = Rule(AMD64.sp, 8 + 8 * pushed, deref=False)
    return UnwindRow(cfa, Rule(CFA, -8, deref=True), kept=tuple(sorted(AMD64.callee_saved)))


_STUBS = (
    # jmp *GOT(%rip); push index; | jmp PLT0
    code(rb"(?P<here>\xff\x25....\x68....)\xe9....", _row(0)),
    code(rb"\xff\x25....\x68....(?P<here>\xe9....)", _row(1)),
    # endbr64; push index; | jmp PLT0 (with a bnd before it, or nops behind it)
    code(rb"(?P<here>\xf3\x0f\x1e\xfa\x68....)\xf2?\xe9....", _row(0)),
    code(rb"\xf3\x0f\x1e\xfa\x68....(?P<here>\xf2?\xe9....)", _row(1)),
    # endbr64; jmp *GOT(%rip)
    code(rb"(?P<here>\xf3\x0f\x1e\xfa\xf2?\xff\x25....)", _row(0)),
    # PLT0: push GOT+8(%rip); | jmp *GOT+16(%rip)
    code(rb"(?P<here>\xff\x35....)\xf2?\xff\x25....", _row(1)),
    code(rb"\xff\x35....(?P<here>\xf2?\xff\x25....)", _row(2)),
)


class PltStepper:
    """Steps from a stub to the function that called through it."""

    found = Found.PLT

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row of the instruction."""
        if module is None or not frame.exact or arch.machine != AMD64.machine:
            return None
        return row_among(_STUBS, frame, module)
