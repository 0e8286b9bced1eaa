"""The history of periodic profiling: slices of services, kept for months in a directory."""
