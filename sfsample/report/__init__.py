"""Makes, merges, compares, reads and writes reports: profiles with names, as plain values."""
