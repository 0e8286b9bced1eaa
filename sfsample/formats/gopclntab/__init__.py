"""Reads `.gopclntab`, the table of functions of each Go program; `strip` does not remove this table."""
