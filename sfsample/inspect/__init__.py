"""Shows the unwind tables of a module: the code that they cover, and where two tables disagree."""
