"""Reads machine code: calls, x86-64 instructions, starts of functions."""
