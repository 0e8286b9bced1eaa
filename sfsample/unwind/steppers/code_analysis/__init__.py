"""Callers of code that no table describes, found by following its instructions."""
