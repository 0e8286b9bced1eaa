"""The daemon of `sfsample watch`: records slices for months, keeps them, sends them, serves them."""
