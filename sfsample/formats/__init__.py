"""Parses bytes into values.  This package opens no file and reads no process."""
