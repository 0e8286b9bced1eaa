"""Where the address of a thread's goroutine is searched."""

import ctypes
import mmap
import os
from types import SimpleNamespace

from sfsample.core.arch import AMD64
from sfsample.process.go_capture import GoCapture

FS_BASE = 58  # DWARF number
PAGE = mmap.PAGESIZE


def test_the_page_before_the_thread_local_storage_may_be_unmapped() -> None:
    """The runtime keeps it in the `m` of the thread, which may be the first object of an arena."""
    area = mmap.mmap(-1, 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    base = start + PAGE + 64
    area[PAGE + 56 : PAGE + 64] = (0x1234).to_bytes(8, "little")
    process = SimpleNamespace(arch=AMD64, proc=SimpleNamespace(anchor=os.getpid))
    capture = GoCapture(process)  # type: ignore[arg-type]
    assert capture._candidates({FS_BASE: base})[0] == 0x1234
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start), PAGE, 0) == 0  # PROT_NONE
    try:
        assert capture._candidates({FS_BASE: base}) == [0x1234, *[0] * 7]
    finally:
        libc.mprotect(ctypes.c_void_p(start), PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
