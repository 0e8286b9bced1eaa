"""One file for each machine: registers, signal frames, ptrace and core layouts, system calls, relocations."""
