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


def sigmoid(z):
    return 1 / (1 + math.exp(-z)) if z > 0 else math.exp(z) / (1 + math.exp(z))


def expected(labels):
    """k where none is given: from the whole training labels, class by class."""
    table = labels.dense().tolist()
    images = len(table)
    per_image = [sum(1 for y in row if y == 1) for row in table]
    counts = [tuple([row[c] for row in table].count(sign) for sign in (1, -1)) for c in range(len(table[0]))]
    both = [(x, y) for x, y in counts if y > 0]
    fair = 0 < len(both) < 3
    slope = start = 0.0
    if len(both) >= 3 and len({x for x, _ in both}) > 1:
        # the normal equations of least squares, and the spread of what they leave over
        n, sx, sy = len(both), sum(x for x, _ in both), sum(y for _, y in both)
        sxx, sxy = sum(x * x for x, _ in both), sum(x * y for x, y in both)
        slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        start = (sy - slope * sx) / n
        left = sum((y - start - slope * x) ** 2 for x, y in both) / (n - 2)
        fair = abs(slope + 1) <= 3 * math.sqrt(max(left, 0) * n / (n * sxx - sx * sx)) + 1e-9
    if fair:
        average = (sum(x for x, _ in both) + 0.5) / (sum(x + y for x, y in both) + 1)
        total = sum((x + average) / (x + y + 1) if y else x / images for x, y in counts)
    elif slope < 0 and 0 < -start / slope < images * (1 - 1e-9):
        total = sum(min(x * slope / -start, 1) for x, _ in counts)
    else:
        seen = [count for count in per_image if count > 0]
        return max(sum(seen) / len(seen), 1) if seen else 1
    return max(total, sum(per_image) / images)


def known(z, y):
    return {1: loss_present(z), -1: loss_absent(z), 0: 0.0}[int(y)]


def excess(logits, k):
    mean = sum(sigmoid(z) for row in logits for z in row) / len(logits)
    return ((mean - k) / len(logits[0])) ** 2


def epr(logits, labels, run, k, strength):
    k = expected(run.labels) if k is None else k
    return mean_over_entries(logits, labels, known) + strength * excess(logits, k)


def role(logits, estimates, targets, estimate_targets, labels, run, k, strength, lr_factor, optimizer):
    """Both kinds of targets are the logits and the estimates where they stand still."""

    def half(inputs, others):
        total = 0.0
        for row, target_row in zip(inputs, others, strict=True):
            for z, t in zip(row, target_row, strict=True):
                total += sigmoid(t) * loss_present(z) + (1 - sigmoid(t)) * loss_absent(z)
        return epr(inputs, labels, run, k, strength) + total / (len(inputs) * len(inputs[0]))

    return (half(logits, estimate_targets) + half(estimates, targets)) / 2


def role_of_logits(logits, labels, run, **parameters):
    """The estimates are where the run has them; the battery moves the logits only."""
    estimates = run.state.table("role").values.tolist()
    return role(logits, estimates, run.at, estimates, labels, run, **parameters)


REFERENCES = {
    "wan": wan,
    "an_ls": smoothed,
    "bce_ls": smoothed,
    "ranking": ranking,
    "epr": epr,
    "role": role_of_logits,
}
VARIANTS = [
    ("bce_ls", {"smoothing": 0.3}),
    ("an_ls", {"smoothing": 0.2}),
    ("sampled_negative", {"rate": 0.5}),
    ("epr", {"k": 2.5, "strength": 3.0}),
    ("role", {"k": 2.5, "strength": 3.0, "lr_factor": 2.0}),
    ("role", {"optimizer": "dense", "lr_factor": 10.0}),
]
EQUALS_BCE = ("sampled_negative",)
DRAWS = ("sampled_negative",)
