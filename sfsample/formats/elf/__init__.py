"""Reads ELF files, core files and object files."""
