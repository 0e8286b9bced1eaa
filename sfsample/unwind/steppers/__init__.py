"""One file for each source of unwind rows."""
