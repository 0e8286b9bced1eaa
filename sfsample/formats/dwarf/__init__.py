"""Reads DWARF call frame information (CFI) and evaluates DWARF expressions."""
