"""A stack that could not be followed, as a file, and unwound again from it."""
