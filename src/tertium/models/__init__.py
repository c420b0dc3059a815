"""Networks: the classifier, frozen features, nearest images."""
