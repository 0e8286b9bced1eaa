"""Shows the unwind tables of a module, the code that they cover, and their disagreements."""
