"""Reads `.gopclntab`, the table of functions that each Go program carries; `strip` does not remove it."""
