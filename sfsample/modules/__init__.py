"""Finds the ELF object that is mapped at an address of a process."""
