"""Slow, obvious, independent computations of every loss: plain loops over float64 numbers.

``REFERENCES[name](logits, labels, **parameters)`` returns the value that the method of that name must have.
"""

from tests.reference import asymmetric, baselines, cole2021

REFERENCES = {**baselines.REFERENCES, **cole2021.REFERENCES, **asymmetric.REFERENCES}
