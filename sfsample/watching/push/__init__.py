"""Sends the slices of a history to Pyroscope, Parca, or a backend that takes OTLP profiles."""
