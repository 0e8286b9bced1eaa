"""What surrounds the threads of a process: system calls, files, sockets, locks."""
