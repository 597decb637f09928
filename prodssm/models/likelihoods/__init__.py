"""Distributions of an observation given the emission's output, one per file."""
