"""Says what the threads of a dump wait for.  The diagnosis uses only values, never the process."""
