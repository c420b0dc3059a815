import math

from tests.reference.asymmetric import probability
from tests.reference.baselines import loss_absent, loss_present


def partial_asymmetric(logits, labels, run, gammas, omega):
    """Equation 3; omega(row, column) is the selectivity, focal weights are constants."""
    positive, negative, unknown = gammas
    total = 0.0
    for row in range(len(logits)):
        for column in range(len(logits[0])):
            z, fixed = logits[row][column], probability(run.at[row][column])
            if labels[row][column] == 1:
                total += (1 - fixed) ** positive * loss_present(z)
            elif labels[row][column] == -1:
                total += fixed**negative * loss_absent(z)
            else:
                total += omega(row, column) * fixed**unknown * loss_absent(z)
    return total / len(logits)


def p_asl(logits, labels, run, gamma_positive, gamma_negative, gamma_unknown):
    gammas = gamma_positive, gamma_negative, gamma_unknown
    return partial_asymmetric(logits, labels, run, gammas, lambda row, column: 1.0)


def selective(
    logits,
    labels,
    run,
    gamma_positive,
    gamma_negative,
    gamma_unknown,
    likelihood,
    k,
    pool,
    prior,
    top,
    eta,
    soft_prior,
):
    rows, columns = range(len(logits)), range(len(logits[0]))
    unknown = [
        sorted((run.at[row][column], row, column) for column in columns if labels[row][column] == 0)[::-1]
        for row in rows
    ]
    if not likelihood:
        chosen = []
    elif pool == "image":
        chosen = [entry for of_image in unknown for entry in of_image[:k]]
    else:
        chosen = sorted((entry for of_image in unknown for entry in of_image), reverse=True)[: k * len(rows)]
    likely = {(row, column) for _, row, column in chosen}

    predictions = run.predictions(None)
    frequency = [sum(float(predictions[row][column]) for row in rows) / len(rows) for column in columns]
    ranked = sorted(columns, key=lambda column: -frequency[column])

    def omega(row, column):
        if (row, column) in likely:
            return 0.0
        if prior is None:
            return 1.0
        if soft_prior is not None:
            return math.exp(-soft_prior * frequency[column])
        if eta is not None:
            return 0.0 if frequency[column] > eta else 1.0
        if top is not None:
            return 0.0 if column in ranked[: round(top * len(ranked))] else 1.0
        return 1.0

    gammas = gamma_positive, gamma_negative, gamma_unknown
    return partial_asymmetric(logits, labels, run, gammas, omega)


REFERENCES = {"p_asl": p_asl, "selective": selective}
VARIANTS = [
    ("p_asl", {"gamma_positive": 1.0, "gamma_negative": 2.0, "gamma_unknown": 7.0}),
    ("p_asl", {"gamma_positive": 0.5, "gamma_negative": 0.0, "gamma_unknown": 0.0}),
    ("selective", {"k": 1, "eta": 0.5}),
    ("selective", {"k": 1, "top": None}),
    ("selective", {"k": 1, "top": 0.4}),
    ("selective", {"k": 1, "pool": "batch", "prior": None, "gamma_unknown": 1.0}),
    ("selective", {"k": 1, "pool": "batch", "soft_prior": 3.0, "gamma_unknown": 1.0}),
    ("selective", {"likelihood": False, "eta": 0.5, "gamma_positive": 1.0, "gamma_negative": 1.0}),
    ("selective", {"k": 2, "prior": None}),
]
