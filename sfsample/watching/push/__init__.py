"""Sends the slices of a history to Pyroscope, Parca, or what takes OTLP profiles."""
