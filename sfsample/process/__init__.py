"""Live processes and core files: the only package that touches a live process."""
