"""Parses bytes into values; opens no file and reads no process."""
