import math

from tests.reference.baselines import loss_absent, loss_present


def em(logits, labels, run, alpha, apl, warmup, frozen, beta):
    """What is frozen, and where, is in the run's state; how it gets there is checked in test_zhou2022."""
    tables = {name: table.values for name, table in run.state.tables.items()}
    total = 0.0
    for image in range(len(logits)):
        for label in range(len(logits[0])):
            z, y = logits[image][label], labels[image][label]
            if y == 1:
                total += loss_present(z)
            elif y == -1:
                total += loss_absent(z)
            elif apl and tables["frozen"][image, label]:
                soft = 1 / (1 + math.exp(-tables["prediction"][image, label].item()))
                total += beta * (soft * loss_present(z) + (1 - soft) * loss_absent(z))
            else:
                p = 1 / (1 + math.exp(-z))
                total -= alpha * -(p * math.log(p) + (1 - p) * math.log(1 - p))
    return total / (len(logits) * len(logits[0]))


REFERENCES = {"em": em}
VARIANTS = [
    ("em", {"alpha": 0.3}),
    ("em", {"alpha": 0.0}),
    ("em", {"apl": True}),
    ("em", {"apl": True, "warmup": 1, "frozen": 1.0, "beta": 0.3}),
    ("em", {"apl": True, "warmup": 0, "frozen": 0.5, "alpha": 0.05}),
]
EQUALS_BCE = ("em",)
