import math

from tests.reference.asymmetric import probability
from tests.reference.baselines import loss_absent, loss_present
from tests.reference.zhang2021 import total


def gr(logits, labels, run, q2, q3, w_start, w_end, b_start, b_end, mu_start, mu_end, sigma_start, sigma_end):
    done = (run.epoch - 1) / (run.epochs - 1)
    w = w_start + (w_end - w_start) * done
    b = b_start + (b_end - b_start) * done
    mu = mu_start + (mu_end - mu_start) * done
    sigma = sigma_start + (sigma_end - sigma_start) * done

    def entry(z, y, fixed):
        if y == 1:
            return loss_present(z)
        if y == -1:
            return loss_absent(z)
        p = probability(z)
        believed = probability(w * probability(fixed) + b)
        counted = math.exp(-((probability(fixed) - mu) ** 2) / (2 * sigma**2))
        return counted * (believed * (1 - p**q2) / q2 + (1 - believed) * (1 - (1 - p) ** q3) / q3)

    return total(logits, labels, run, entry)


REFERENCES = {"gr": gr}
VARIANTS = [
    ("gr", {"q2": 0.7, "q3": 0.2}),
    ("gr", {"w_start": 4.0, "w_end": -1.0, "b_start": 1.0, "b_end": 3.0}),
    ("gr", {"mu_start": 0.9, "mu_end": 0.1, "sigma_start": 0.3, "sigma_end": 1.0}),
]
EQUALS_BCE = ("gr",)
