import math

from tests.reference.baselines import loss_absent, loss_present


def pseudo(logits, labels, run, balance, exposure, margin, penalty, share):
    assert share in (None, 1.0)  # anything else draws
    said = run.state.table("pseudo").values.tolist()
    stored = [[0.5 if math.isnan(z) else 1 / (1 + math.exp(-z)) for z in row] for row in said]
    slots = len(logits) * len(logits[0])
    beta = max(sum(1 for row in labels for y in row if y == 1) / slots, 0.05)
    alpha = 1 - beta
    if not balance:
        alpha = beta = 1.0
    epoch = run.epoch - 1  # the paper counts from 0
    trust = 1.0
    if exposure == "exponential":
        trust = math.exp((epoch + margin) / run.epochs - 1)
    if exposure == "linear":
        trust = (epoch + margin) / run.epochs
    total = 0.0
    for image in range(len(logits)):
        existing, rest = [], []
        for z, y, guess in zip(logits[image], labels[image], stored[image], strict=True):
            target = guess if y == 0 else (1.0 if y == 1 else 0.0)
            value = alpha * target * loss_present(z) + beta * (1 - target) * loss_absent(z)
            (rest if y == 0 else existing).append(value)
        loss = 0.0
        if existing:
            loss += sum(existing) / len(existing)
        if rest:
            loss += trust * sum(rest) / len(rest)
        if penalty and all(1 / (1 + math.exp(-z)) < 0.1 for z in run.at[image]):
            loss *= 2
        total += loss
    return total / len(logits)


REFERENCES = {"pseudo": pseudo}
VARIANTS = [
    ("pseudo", {"balance": False}),
    ("pseudo", {"exposure": "linear"}),
    ("pseudo", {"exposure": None, "margin": 1}),
    ("pseudo", {"margin": 0}),
    ("pseudo", {"penalty": False}),
    ("pseudo", {"share": 1.0}),
    ("pseudo", {"balance": False, "exposure": None, "penalty": False}),
]
