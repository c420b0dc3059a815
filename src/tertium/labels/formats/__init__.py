"""Readers of published annotation formats: one module for each, which states what "unknown" means in it."""
