"""Turns locations in code into names."""
