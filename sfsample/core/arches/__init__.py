"""One file for each machine: its registers, signal frames and system calls."""
