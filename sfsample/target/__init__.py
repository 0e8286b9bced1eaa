"""The only package that touches a live process."""
