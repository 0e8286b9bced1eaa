"""Reads the frames of languages from the target's memory; a package for each."""
