"""How often intervals of an average precision hold the truth: `python -m bench.intervals`.

Scores come from two normal distributions, so that the AP of very many images is known.
"""

import numpy as np

from tertium.metrics.evaluation import average_precision
from tertium.reporting.quality import interval

RESAMPLED = 100


def drawn(rng, images, share, shift, columns):
    labels = np.where(rng.random((images, columns)) < share, 1, -1).astype(np.int8)
    labels[0] = np.where((labels > 0).any(axis=0), labels[0], 1)
    return rng.normal(size=labels.shape) + shift * (labels > 0), labels


def bootstrap(rng, scores, labels):
    """The percentile interval over resampled images, for each column."""
    found = []
    for _ in range(RESAMPLED):
        rows = rng.integers(0, len(scores), len(scores))
        found.append(average_precision(scores[rows], labels[rows]))
    return np.nanquantile(found, [0.025, 0.975], axis=0)


def main():
    rng = np.random.default_rng(0)
    covered = []
    for images in (50, 400, 2000):
        for share in (0.02, 0.1, 0.5):
            if images * share < 4:
                continue
            for shift in (0.5, 1.5, 3.0):
                truth = average_precision(*drawn(rng, 400_000, share, shift, 1))[0]
                scores, labels = drawn(rng, images, share, shift, 200)
                bounds = interval(average_precision(scores, labels), (labels > 0).sum(axis=0))
                both = bounds, bootstrap(rng, scores, labels)
                covered.append([np.mean((low <= truth) & (truth <= high)) for low, high in both])
                wilson, resampled = covered[-1]
                print(
                    f"{images:5} images, {share:4.0%} present, {shift} apart: AP {100 * truth:5.1f}, "
                    f"held by Wilson's {wilson:4.0%}, by the bootstrap {resampled:4.0%}",
                    flush=True,
                )
    low, high = np.min(covered, axis=0), np.max(covered, axis=0)
    print(f"Wilson's {low[0]:.0%} to {high[0]:.0%}, bootstrap {low[1]:.0%} to {high[1]:.0%}")


if __name__ == "__main__":
    main()
