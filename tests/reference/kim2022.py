import math
from fractions import Fraction

from tests.reference.baselines import loss_absent, loss_present


def chosen_entries(run, labels, *, grows, delta, threshold, start, step, rate_of):
    """Equations 4 and 7: the entries whose label or weight is modified, as (row, column)."""
    if run.epoch == 1:
        return set()
    losses = []
    for row, row_labels in enumerate(labels):
        for column, y in enumerate(row_labels):
            if y == 0:
                losses.append((loss_absent(run.at[row][column]), row, column))
    if threshold == "absolute":
        limit = start - run.epoch * step
        return {(row, column) for loss, row, column in losses if loss > limit}
    total = len(losses) if rate_of == "unknown" else len(labels) * len(labels[0])
    rate = Fraction(repr(delta)) / 100 * ((run.epoch - 1) if grows else 1)
    count = 0
    while count < rate * total and count < len(losses):
        count += 1
    losses.sort(key=lambda entry: -entry[0])
    return {(row, column) for _, row, column in losses[:count]}


def modified(logits, labels, chosen, treat):
    total = 0.0
    for row, (row_logits, row_labels) in enumerate(zip(logits, labels, strict=True)):
        for column, (z, y) in enumerate(zip(row_logits, row_labels, strict=True)):
            if (row, column) in chosen:
                total += treat(z)
            else:
                total += loss_present(z) if y == 1 else loss_absent(z)
    return total / (len(logits) * len(logits[0]))


def ll_r(logits, labels, run, **parameters):
    return modified(logits, labels, chosen_entries(run, labels, grows=True, **parameters), lambda z: 0.0)


def ll_ct(logits, labels, run, **parameters):
    def treat(z):  # equation 5: ℓ⁻ times λ
        return loss_absent(z) * (math.log(1 / (1 + math.exp(-z))) / math.log(1 / (1 + math.exp(z))))

    return modified(logits, labels, chosen_entries(run, labels, grows=True, **parameters), treat)


def ll_cp(logits, labels, run, **parameters):
    corrected = run.state.table("corrected", kind="flag").values.tolist()
    labels = [
        [1 if flipped else y for y, flipped in zip(*rows, strict=True)]
        for rows in zip(labels, corrected, strict=True)
    ]
    chosen = chosen_entries(run, labels, grows=False, **parameters)
    return modified(logits, labels, chosen, loss_present)


REFERENCES = {"ll_r": ll_r, "ll_ct": ll_ct, "ll_cp": ll_cp}
VARIANTS = [
    (name, parameters)
    for name in REFERENCES
    for parameters in (
        {"delta": 30.0},
        {"delta": 20.0, "rate_of": "all"},
        {"delta": 100.0},
        {"threshold": "absolute", "start": 1.5, "step": 0.25},
        {"threshold": "absolute", "start": 0.5, "step": 1.0},  # below 0: every unknown label
    )
]
EQUALS_BCE = tuple(REFERENCES)
