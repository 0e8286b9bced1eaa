"""Has one file for each source of unwind rows."""
