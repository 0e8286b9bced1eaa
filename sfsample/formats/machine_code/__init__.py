"""Reads machine code: calls, x86-64 instructions, and where functions begin."""
