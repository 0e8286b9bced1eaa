"""Python frames of CPython processes, from outside: where they are, what they are called, where they belong."""
