"""From a copied thread to its stack: `Unwinder` walks, steppers give rows, `apply_row` executes them."""
