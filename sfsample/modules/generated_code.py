"""Code that lies in no file: what a runtime has generated, out of the memory of the target.

Law: read when it is asked for, page by page and each page once, and only so many are kept.  The target runs
meanwhile, so it may have written other code there since a thread was looked at: who uses it says so.
"""

from collections.abc import Callable

ReadMemory = Callable[[int, int], bytes | None]  # exactly so many bytes at an address, or None
ReadCode = Callable[[int, int], bytes]  # so many bytes of code at an address, or fewer

_PAGE = 4096
_MOST_PAGES = 256


class GeneratedCode:
    """Pages of a target, through `read`."""

    def __init__(self, read: ReadMemory) -> None:
        self._read = read
        self._pages: dict[int, bytes] = {}

    def forget(self) -> None:
        """Drop all pages: the mappings have changed."""
        self._pages.clear()

    def at(self, address: int, size: int) -> bytes:
        """Return up to `size` (at most a page) bytes of code from `address`; fewer where less can be read."""
        start = address & -_PAGE
        found = self._page(start)
        if address + size > start + _PAGE and len(found) == _PAGE:
            found += self._page(start + _PAGE)
        return found[address - start : address - start + size]

    def _page(self, start: int) -> bytes:
        page = self._pages.get(start)
        if page is None:
            page = self._read(start, _PAGE)
            if page is None:  # not kept: the target may have been between two states
                return b""
            if len(self._pages) >= _MOST_PAGES:
                self.forget()
            self._pages[start] = page
        return page
