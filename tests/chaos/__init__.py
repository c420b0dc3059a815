"""Chaos: commands are killed, run on damaged files and on full disks at random, and held to their promises.

`python -m tests.chaos --seed 7 --seconds 60` prints a line for each action. What action number K does is a
function of the seed and of K alone, so `--seed 7 --first K --actions 1` tries one of them again.
"""
