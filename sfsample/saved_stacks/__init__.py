"""Saves incomplete stacks to files, and unwinds them again later or on another machine."""
