"""May sfsample attach to a process, and if not, why."""
