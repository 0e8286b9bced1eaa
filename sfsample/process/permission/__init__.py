"""Finds out whether sfsample may attach to a process, and if not, why and what to do."""
