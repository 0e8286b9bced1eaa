"""Decides whether a stack may end at a zero return address that no table declares to be the end.

Coroutines and threads made by hand mark their first frame with a return address of zero, and chains of frame
pointers end in zero; but a wrong row finds a zero in any local variable.  So a zero is accepted only if no
word above it may be a return address: a caller would have left one there.  Code that cannot be read
(generated code) counts as a possible caller.
"""

from collections.abc import Iterator
from itertools import takewhile

from sfsample.core.arch import Arch
from sfsample.core.memory import Memory
from sfsample.modules.module_map import ModuleMap

_SEARCH_BYTES = 4096  # above the zero; what lies farther may belong to another stack
_WORD = 8  # bytes
_LOWEST_CODE = 4096  # no code lies in the first page


def is_stack_end(above: int, memory: Memory, modules: ModuleMap, arch: Arch) -> bool:
    """Return whether a stack may end at the word below address `above`."""
    return not any(_may_be_returned_to(word & arch.ra_mask, modules) for word in _words_from(above, memory))


def _words_from(start: int, memory: Memory) -> Iterator[int]:
    words = (memory.word(address) for address in range(start, start + _SEARCH_BYTES, _WORD))
    return (word for word in takewhile(lambda word: word is not None, words) if word)


def _may_be_returned_to(pc: int, modules: ModuleMap) -> bool:
    mapping = modules.any_mapping(pc - 1) if pc > _LOWEST_CODE else None
    return mapping is not None and mapping.executable and modules.may_be_returned_to(pc)
