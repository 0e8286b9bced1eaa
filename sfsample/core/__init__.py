"""Values that all packages share, and the facts of each machine."""
