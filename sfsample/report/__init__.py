"""Profiles with names: a value that needs neither the process nor its files."""
