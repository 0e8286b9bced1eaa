"""Reads from /proc the objects for which threads wait: system calls, files, sockets, locks."""
