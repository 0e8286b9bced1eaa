"""Whether a stack may end at a zero that no table calls its end.

Law: coroutines and threads made by hand mark their first frame with a return address of zero, and chains of
frame pointers end in zero; but a wrong row finds a zero in any local variable.  So a zero is believed only if
nothing above it may be a return address: if somebody has called, that word lies above.  Code that cannot be
read is no witness for the end.
"""

from collections.abc import Iterator
from itertools import takewhile

from sfsample.core.arch import Arch
from sfsample.core.memory import Memory
from sfsample.modules.module_map import ModuleMap

_REACH = 4096  # bytes; what lies farther may be another's stack
_WORD = 8
_LOWEST = 4096  # no code below


def is_stack_end(above: int, memory: Memory, index: ModuleMap, arch: Arch) -> bool:
    """Whether a stack may end at the word below `above`."""
    return not any(_may_be_returned_to(word & arch.ra_mask, index) for word in _words(above, memory))


def _words(start: int, memory: Memory) -> Iterator[int]:
    words = (memory.word(address) for address in range(start, start + _REACH, _WORD))
    return (word for word in takewhile(lambda word: word is not None, words) if word)


def _may_be_returned_to(pc: int, index: ModuleMap) -> bool:
    mapping = index.any_mapping(pc - 1) if pc > _LOWEST else None
    if mapping is None or not mapping.executable:
        return False
    module = index.find(pc - 1)
    return module is None or module.follows_call(pc)
