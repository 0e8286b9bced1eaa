"""Languages whose frames are read from the memory of the target, a package each."""
