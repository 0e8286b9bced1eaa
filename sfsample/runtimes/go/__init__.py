"""Reads the goroutines of a Go program from its memory."""
