"""Parses bytes into values.  It opens no file and reads no process."""
