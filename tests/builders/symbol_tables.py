"""Searches one symbol table as `ModuleSymbols` does if a module has no other."""

from sfsample.symbolize import symbol_table
from sfsample.symbolize.symbol_table import Symbol


class SymbolTable(symbol_table.SymbolTable):
    def __len__(self) -> int:
        return len(self._stated.rows) + len(self._guessed.rows)

    def find(self, vaddr: int) -> Symbol | None:
        return self.find_stated(vaddr) or self.find_guessed(vaddr)
