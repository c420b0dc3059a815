"""Annotation files as others publish them: one module for each format, each with its reading of "unknown"."""
