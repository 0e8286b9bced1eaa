"""Readers: one module for each format that a profile can be read from."""
