"""Kinds of places where images are kept: one module for each, found by `tertium.data.sources.opening`."""
