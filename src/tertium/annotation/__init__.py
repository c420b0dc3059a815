"""How labels were annotated: class frequencies, propensities, calibrated probabilities."""
