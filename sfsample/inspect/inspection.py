"""What sfsample finds out about one module: the value between the measurements and the text or JSON."""

from typing import NamedTuple

from sfsample.inspect.coverage import Coverage
from sfsample.inspect.verify import Verification
from sfsample.modules.module import Module


class Inspection(NamedTuple):
    """One module: its tables, what is wrong with them, what they cover, and whether they agree.

    `verification` is None unless the user asked for it, and `base` is None outside a process.  `layout` is
    for an object file: the name of each code section and the vaddr it was placed at.
    """

    module: Module
    findings: tuple[str, ...]
    coverage: Coverage
    verification: Verification | None
    base: int | None = None
    layout: tuple[tuple[str, int], ...] = ()
