from tests.reference.baselines import loss_absent, loss_present


def weighted_ignore(logits, labels, run, alpha, beta, gamma):
    total = 0.0
    for row_logits, row_labels in zip(logits, labels, strict=True):
        known = sum(1 for y in row_labels if y != 0)
        if known == 0:
            continue
        weight = alpha * (known / len(row_labels)) ** gamma + beta
        for z, y in zip(row_logits, row_labels, strict=True):
            if y != 0:
                total += weight * (loss_present(z) if y == 1 else loss_absent(z))
    return total / (len(logits) * len(logits[0]))


def curriculum(logits, labels, run, alpha, beta, gamma, rounds, confidence):
    present, absent = (run.state.table(f"curriculum.{side}").values.int() for side in ("present", "absent"))
    adopted = (present - absent).tolist()
    merged = [
        [y if y != 0 else taken for y, taken in zip(*rows, strict=True)]
        for rows in zip(labels, adopted, strict=True)
    ]
    return weighted_ignore(logits, merged, run, alpha, beta, gamma)


REFERENCES = {"weighted_ignore": weighted_ignore, "curriculum": curriculum}
VARIANTS = [
    ("weighted_ignore", {"alpha": -2.0, "beta": 3.0, "gamma": 2.0}),
    ("curriculum", {"rounds": 10, "confidence": 0.1}),
]
EQUALS_BCE = ("weighted_ignore", "curriculum")
