"""What the threads of a process wait for, as the kernel reports it: system calls, files, sockets, locks."""
