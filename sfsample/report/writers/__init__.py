"""Reports as files: one module for each format."""
