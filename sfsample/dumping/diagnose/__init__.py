"""Says what the threads of a dump wait for; uses only the values of the dump, never the process."""
