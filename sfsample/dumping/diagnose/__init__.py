"""Finds out from a dump what its threads wait for, and says it in sentences.

It uses only the values of the dump, never the process.
"""
