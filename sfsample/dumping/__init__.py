"""Dumps processes: the stack of every thread, and what the thread waits for."""
