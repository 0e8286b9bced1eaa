"""From places in code to names."""
