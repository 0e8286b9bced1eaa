"""Which ELF object is mapped at which address of a process."""
