"""Reports (profiles with names, as plain values): makes, merges, compares, reads and writes them."""
