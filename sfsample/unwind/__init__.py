"""Unwinds a copied thread: `Unwinder` walks its stack, steppers give rows, `apply_row` executes them."""
