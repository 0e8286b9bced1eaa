"""Python frames of CPython processes, from outside: where they are, and what they are called."""
