from tests.reference.asymmetric import probability
from tests.reference.baselines import loss_absent, loss_present


def weight_of(z, fixed, detached):
    """The logit that a focal weight sees: differences are not taken of a detached one."""
    return fixed if detached else z


def total(logits, labels, run, entry):
    found = 0.0
    for row, (row_logits, row_labels) in enumerate(zip(logits, labels, strict=True)):
        for column, (z, y) in enumerate(zip(row_logits, row_labels, strict=True)):
            found += entry(z, y, run.at[row][column])
    return found / (len(logits) * len(logits[0]))


def hill(logits, labels, run, lam, margin, gamma, detached):
    def entry(z, y, fixed):
        if y == 1:
            seen = weight_of(z, fixed, detached)
            return (1 - probability(seen - margin)) ** gamma * loss_present(z - margin)
        if y == -1:
            return loss_absent(z)
        return (lam - probability(z)) * probability(z) ** 2

    return total(logits, labels, run, entry)


def splc(logits, labels, run, threshold, start, margin, gamma, detached):
    def entry(z, y, fixed):
        seen = weight_of(z, fixed, detached)
        corrected = run.epoch >= start and y == 0 and probability(fixed) > threshold
        if y == 1 or corrected:
            return (1 - probability(seen - margin)) ** gamma * loss_present(z - margin)
        return probability(seen) ** gamma * loss_absent(z)

    return total(logits, labels, run, entry)


REFERENCES = {"hill": hill, "splc": splc}
VARIANTS = [
    ("hill", {"lam": 2.0, "margin": 0.5, "gamma": 1.0}),
    ("hill", {"detached": False, "gamma": 0.5}),
    ("splc", {"threshold": 0.3, "margin": 0.0, "gamma": 0.5}),
    ("splc", {"start": 4}),
    ("splc", {"detached": False, "gamma": 3.0}),
]
