import math

from tests.reference.baselines import loss_absent, loss_present, mean_over_entries


def probability(z):
    return 1 / (1 + math.exp(-z))


def focal(logits, labels, run, gamma):
    def entry(z, y):
        if y == 1:
            return (1 - probability(z)) ** gamma * loss_present(z)
        return probability(z) ** gamma * loss_absent(z)

    return mean_over_entries(logits, labels, entry)


def asl(logits, labels, run, gamma_positive, gamma_negative, clip):
    def entry(z, y):
        p = probability(z)
        if y == 1:
            return (1 - p) ** gamma_positive * loss_present(z)
        shifted = max(p - clip, 0.0)
        return shifted**gamma_negative * -math.log(1 - shifted)

    return mean_over_entries(logits, labels, entry)


REFERENCES = {"focal": focal, "asl": asl}
VARIANTS = [
    ("focal", {"gamma": 0.5}),
    ("asl", {"gamma_positive": 1.0, "gamma_negative": 2.0, "clip": 0.0}),
]
