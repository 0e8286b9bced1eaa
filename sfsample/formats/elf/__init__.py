"""Reads ELF files and core files."""
