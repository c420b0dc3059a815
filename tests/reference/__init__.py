"""Slow, obvious, independent computations of every loss: plain loops over float64 numbers.

A module here has the name of the file in ``tertium.methods`` that it checks, and may define:

- ``REFERENCES``: for each method a function ``(logits, labels, run, **parameters)`` that returns the loss.
  ``run`` is as the method left it after ``prepare`` and ``before_epoch``. ``run.at`` are the logits around
  which differences are taken: a weight that the method detaches is computed from these instead.
- ``VARIANTS``: (name, parameters) off the defaults, to exercise each parameter.
- ``EQUALS_BCE``: methods that equal BCE on fully labelled data.
- ``DRAWS``: methods that draw at random for each entry, and are checked by expectation elsewhere.
"""

import importlib
import pkgutil

from tertium import methods

MODULES = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
REFERENCES = {name: loss for module in MODULES for name, loss in getattr(module, "REFERENCES", {}).items()}
# Not those that other tests define, nor those of other packages.
METHODS = [name for name, kind in methods.available().items() if kind.__module__.startswith("tertium.")]
VARIANTS = [variant for module in MODULES for variant in getattr(module, "VARIANTS", [])]
CASES = [(name, {}) for name in METHODS] + VARIANTS
EQUALS_BCE = {name for module in MODULES for name in getattr(module, "EQUALS_BCE", ())}
DRAWS = {name for module in MODULES for name in getattr(module, "DRAWS", ())}
