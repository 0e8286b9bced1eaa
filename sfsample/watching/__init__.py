"""The daemon behind `sfsample watch`: it records slices for months, and keeps, sends and serves them."""
