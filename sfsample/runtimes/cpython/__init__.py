"""Finds and names the Python frames of a CPython process, by reading its memory."""
