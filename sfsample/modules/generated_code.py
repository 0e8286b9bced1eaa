"""Reads code that lies in no file (a JIT's) from the memory of the target.

Pages are read on demand, each once, and a limited number is kept.  The target runs meanwhile and may have
written other code there since a thread was captured, so a caller must not take these bytes as certain.
"""

from collections.abc import Callable

ReadMemory = Callable[[int, int], bytes | None]  # (address, size): exactly `size` bytes, or None
ReadCode = Callable[[int, int], bytes]  # (address, size): up to `size` bytes of code

_PAGE_BYTES = 4096
_MAX_PAGES = 256


class GeneratedCode:
    """Pages of code of one target, read through `read`."""

    def __init__(self, read: ReadMemory) -> None:
        self._read = read
        self._pages: dict[int, bytes] = {}

    def forget(self) -> None:
        """Drop all pages, because the mappings have changed."""
        self._pages.clear()

    def at(self, address: int, size: int) -> bytes:
        """Return up to `size` (at most a page) bytes of code from `address`; fewer where less can be read."""
        start = address & -_PAGE_BYTES
        code = self._page(start)
        if address + size > start + _PAGE_BYTES and len(code) == _PAGE_BYTES:
            code += self._page(start + _PAGE_BYTES)
        return code[address - start : address - start + size]

    def _page(self, start: int) -> bytes:
        page = self._pages.get(start)
        if page is None:
            page = self._read(start, _PAGE_BYTES)
            if page is None:  # not kept: the target may be changing the mapping at this moment
                return b""
            if len(self._pages) >= _MAX_PAGES:
                self.forget()
            self._pages[start] = page
        return page
