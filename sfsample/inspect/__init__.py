"""Shows which unwind tables a module has, what they cover, and whether they agree."""
