import math

from tests.reference.baselines import loss_absent, loss_present, mean_over_entries, smoothed


def wan(logits, labels, run):
    weak = 1 / max(len(logits[0]) - 1, 1)
    return mean_over_entries(
        logits, labels, lambda z, y: loss_present(z) if y == 1 else weak * loss_absent(z)
    )


def ranking(logits, labels, run):
    total = 0.0
    for row_logits, row_labels in zip(logits, labels, strict=True):
        for z, y in zip(row_logits, row_labels, strict=True):
            for other, mark in zip(row_logits, row_labels, strict=True):
                if y == 1 and mark != 1:
                    total += max(0.0, 1 - 1 / (1 + math.exp(-z)) + 1 / (1 + math.exp(-other)))
    return total / (len(logits) * len(logits[0]))


REFERENCES = {"wan": wan, "an_ls": smoothed, "bce_ls": smoothed, "ranking": ranking}
VARIANTS = [
    ("bce_ls", {"smoothing": 0.3}),
    ("an_ls", {"smoothing": 0.2}),
    ("sampled_negative", {"rate": 0.5}),
]
EQUALS_BCE = ("sampled_negative",)
DRAWS = ("sampled_negative",)
