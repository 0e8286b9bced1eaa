"""Finds the callers of code that no table describes, by following the instructions of this code."""
