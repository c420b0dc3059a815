import math

import numpy as np

from tests.reference.baselines import loss_absent, loss_present, mean_over_entries


def unit(vector):
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length if length else 0.0 for value in vector]


def apart(a, b, distance):
    if distance == "euclidean":
        return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    return 1 - sum(x * y for x, y in zip(unit(a), unit(b), strict=True))


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def smallest(values, aggregate):
    """Eq. 4 and 5's minimum, or the rebuttal's median of the 5 smallest; None of nothing."""
    if not values:
        return None
    return min(values) if aggregate == "minimum" else median(sorted(values)[:5])


def class_points(points, labels):
    """ψ(c), or None of a class that is known present nowhere."""
    found = []
    for c in range(len(labels[0])):
        members = [point for point, row in zip(points, labels, strict=True) if row[c] == 1]
        found.append([median(values) for values in zip(*members, strict=True)] if members else None)
    return found


def by_labels(i, c, sign, labels, psi, distance, aggregate):
    if psi[c] is None:
        return None
    others = [psi[o] for o, y in enumerate(labels[i]) if y == sign and psi[o] is not None]
    return smallest([apart(psi[c], other, distance) for other in others], aggregate)


def by_images(i, c, sign, labels, points, neighbours, distance, aggregate):
    others = [j for j in range(len(points)) if j != i]
    others.sort(key=lambda j: apart(points[i], points[j], distance))
    near = [j for j in others[:neighbours] if labels[j][c] == sign]
    found = smallest([apart(points[i], points[j], distance) for j in near], aggregate)
    return 1.0 if found is None else found


def temperatures(labels, features, kind, *, beta, gamma, neighbours, distance, aggregate, temperature, scale):
    """T of every unknown label; None where it is left out."""
    points = [unit(row) for row in features]
    psi = class_points(points, labels)
    result = []
    for i, row in enumerate(labels):
        pairs = {}
        for c in [c for c, y in enumerate(row) if y == 0]:
            both = []
            for sign in (1, -1):
                d_l = by_labels(i, c, sign, labels, psi, distance, aggregate)
                d_i = by_images(i, c, sign, labels, points, neighbours, distance, aggregate)
                both.append({"se_l": d_l, "se_i": d_i}.get(kind, d_i if d_l is None else min(d_l, d_i)))
            if None not in both:
                pairs[c] = both
        ends = [max((both[side] for both in pairs.values()), default=0) for side in (0, 1)]
        if scale == "joint":
            ends = [max(ends)] * 2
        found = [None] * len(row)
        for c, both in pairs.items():
            present, absent = (far / (end or 1) for far, end in zip(both, ends, strict=True))
            d = min(present, absent)
            size = math.exp(beta * ((1 - d) if temperature == "equation" else d)) + gamma
            found[c] = max(size, 1e-3) * (1 if present < absent else -1)
        result.append(found)
    return result


def exposure(kind):
    def loss(logits, labels, run, positive_weight, **about):
        known = run.labels.dense().tolist()
        found = temperatures(known, run.features().tolist(), kind, **about)
        total = 0.0
        for z_row, y_row, t_row in zip(logits, labels, found, strict=True):
            for z, y, t in zip(z_row, y_row, t_row, strict=True):
                if y == 1:
                    total += positive_weight * loss_present(z)
                elif y == -1:
                    total += loss_absent(z)
                elif t is not None:
                    total += loss_present(z * float(np.float16(1 / t)))  # kept in half precision
        return total / (len(logits) * len(logits[0]))

    return loss


def ls(logits, labels, run, temperature, positive_weight):
    def entry(z, y):
        if y == 0:
            return loss_absent(z / temperature)
        return positive_weight * loss_present(z) if y == 1 else loss_absent(z)

    return mean_over_entries(logits, labels, entry)


REFERENCES = {kind: exposure(kind) for kind in ("soft_exposure", "se_l", "se_i")} | {"ls": ls}
VARIANTS = [
    ("ls", {"temperature": 3.0, "positive_weight": 2.0}),
    *(
        (name, parameters)
        for name in ("soft_exposure", "se_l", "se_i")
        for parameters in (
            {"temperature": "prose"},
            {"scale": "separate"},
            {"aggregate": "median5"},
            {"distance": "euclidean", "neighbours": 2, "beta": 2.0},
            {"gamma": 0.5, "positive_weight": 1.0, "aggregate": "median5", "distance": "euclidean"},
            {"gamma": -1.5},  # clamped where it would turn T round
        )
    ),
]
