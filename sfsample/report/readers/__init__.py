"""Files that hold profiles, read back into reports."""
