"""One file for each way to find a caller."""
