"""Bytes to values: no files, no processes."""
