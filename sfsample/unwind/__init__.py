"""From a copied thread to its stack."""
