import math


def loss_present(z):
    """−log p."""
    return math.log1p(math.exp(-z)) if z > 0 else -z + math.log1p(math.exp(z))


def loss_absent(z):
    """−log(1 − p)."""
    return loss_present(-z)


def mean_over_entries(logits, labels, entry):
    total = 0.0
    for row_logits, row_labels in zip(logits, labels, strict=True):
        for z, y in zip(row_logits, row_labels, strict=True):
            total += entry(z, y)
    return total / (len(logits) * len(logits[0]))


def bce(logits, labels, run):
    return negative(logits, labels, run, positive_weight=1.0)


def smoothed(logits, labels, run, smoothing):
    def entry(z, y):
        target = 1 - smoothing if y == 1 else smoothing
        return target * loss_present(z) + (1 - target) * loss_absent(z)

    return mean_over_entries(logits, labels, entry)


def ignore(logits, labels, run):
    return mean_over_entries(
        logits, labels, lambda z, y: {1: loss_present(z), -1: loss_absent(z), 0: 0.0}[int(y)]
    )


def negative(logits, labels, run, positive_weight):
    return mean_over_entries(
        logits, labels, lambda z, y: positive_weight * loss_present(z) if y == 1 else loss_absent(z)
    )


def positive(logits, labels, run):
    return mean_over_entries(logits, labels, lambda z, y: loss_absent(z) if y == -1 else loss_present(z))


REFERENCES = {
    "bce": bce,
    "ignore": ignore,
    "negative": negative,
    "positive": positive,
}
VARIANTS = [
    ("negative", {"positive_weight": 5.0}),
]
EQUALS_BCE = ("ignore", "negative", "positive")
