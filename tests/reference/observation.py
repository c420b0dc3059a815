import math

from tests.reference.asymmetric import probability
from tests.reference.baselines import loss_absent, loss_present


def propensities(labels, labels_per_image):
    """e⁺ and e⁻ of each class, from counts that start at one half."""
    images, found = len(labels), []
    seen = sum(y == 1 for row in labels for y in row) / images
    for column in zip(*labels, strict=True):
        present = 0.5 + sum(y == 1 for y in column)
        absent = 0.5 + sum(y == -1 for y in column)
        rate = present / (present + absent)
        if labels_per_image is not None:
            rate = present / (images + 1) * labels_per_image / seen
            unknown = images + 1 - present - absent
            rate = min(max(rate, present / (images + 1)), (present + 0.9 * unknown) / (images + 1))
        seen_present, seen_absent = present / (images + 1) / rate, absent / (images + 1) / (1 - rate)
        found.append((min(seen_present, 1 - 1e-6), min(seen_absent, 1 - 1e-6)))
    return found


def likelihood(logits, labels, run, labels_per_image):
    return explained(logits, labels, propensities(labels, labels_per_image))


def auto(logits, labels, run, labels_per_image):
    """The same, with whatever propensities were estimated before."""
    return explained(logits, labels, list(zip(*run.state.tensors["propensity"].tolist(), strict=True)))


def explained(logits, labels, rates):
    found = 0.0
    for row_logits, row_labels in zip(logits, labels, strict=True):
        for z, y, (seen_present, seen_absent) in zip(row_logits, row_labels, rates, strict=True):
            if y == 1:
                found += loss_present(z)
            elif y == -1:
                found += loss_absent(z)
            else:
                p = probability(z)
                found -= math.log(p * (1 - seen_present) + (1 - p) * (1 - seen_absent))
    return found / (len(logits) * len(logits[0]))


REFERENCES = {"likelihood": likelihood, "auto": auto}
VARIANTS = [
    ("likelihood", {"labels_per_image": 1.5}),
    ("likelihood", {"labels_per_image": 4.0}),
    ("likelihood", {"labels_per_image": 0.01}),
    ("auto", {"labels_per_image": 1.5}),
]
EQUALS_BCE = ("likelihood", "auto")
