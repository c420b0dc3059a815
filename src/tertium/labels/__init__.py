"""Labels: read, merged, completed along a tree, described."""

from tertium.labels.labels import Labels

__all__ = ["Labels"]
