"""One file for each machine: its registers, signal frames, system calls and relocations."""
