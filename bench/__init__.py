"""What `make bench` measures: ratios taken side by side in one process, medians of interleaved repeats."""
