"""Profiles with names, as plain values: built, merged, compared, read from files and written to files."""
