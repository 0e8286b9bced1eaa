"""Every thread of a process, once, and what it waits for."""
