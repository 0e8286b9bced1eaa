"""Which ELF object is mapped where."""
