"""Finds the callers of code that no table describes, by following its instructions."""
