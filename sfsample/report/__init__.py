"""Profiles with names: values that need neither the process nor its files."""
