"""Judging the unwind tables of a module: what they cover, and whether they agree."""
