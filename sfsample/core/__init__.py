"""Values without I/O, and every fact of a machine."""
