"""The command: python -m tests.chaos --seed 0 --seconds 60."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np

from tests.chaos.actions import ACTIONS, Broken, Scene, Undisturbed, check_end, results
from tests.chaos.workers import Worker, load
from tests.chaos.world import COMMANDS, Command, make


def main() -> int:
    """Let chaos reign for a while; return 1 if a promise was broken."""
    options = argparse.ArgumentParser(prog="python -m tests.chaos")
    options.add_argument("--seed", type=int, default=0, help="what happens is a function of it")
    options.add_argument("--seconds", type=float, default=60.0, help="for how long, after the preparation")
    options.add_argument("--first", type=int, default=0, help="the number of the first action")
    options.add_argument("--actions", type=int, default=10**9, help="at most so many")
    options.add_argument(
        "--keep", action="store_true", help="keep the folders of actions that broke a promise"
    )
    given = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    load()
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    os.environ["TERTIUM_CACHE"] = str(place / "cache")
    try:
        return _reign(place, given)
    finally:
        if not given.keep:
            shutil.rmtree(place, ignore_errors=True)


def _reign(place: Path, given: argparse.Namespace) -> int:
    world = place / "world"
    made = Worker(lambda: make(world), place / "make.txt")
    made.wait()
    check_end(made, (0,))

    @cache
    def undisturbed(command: Command) -> Undisturbed:
        out = place / "reference" / str(COMMANDS.index(command))
        out.mkdir(parents=True)
        began = time.monotonic()
        worker = Worker.command(command.words.format(world=world, out=out).split(), place / "reference.txt")
        worker.wait()
        check_end(worker, (0,))
        return Undisturbed(results(command, out), time.monotonic() - began)

    before = _state(world)
    until, number, broken = time.monotonic() + given.seconds, given.first, 0
    last = given.first + given.actions
    while time.monotonic() < until and number < last:
        rng = np.random.default_rng([given.seed, number])
        folder = place / f"action{number}"
        folder.mkdir()
        scene = Scene(world, undisturbed, folder, rng)
        shares = np.array([share for _, share in ACTIONS], dtype=float)
        act = ACTIONS[int(rng.choice(len(ACTIONS), p=shares / shares.sum()))][0]
        try:
            act(scene)
            if _state(world) != before:
                raise Broken("inputs were changed")
            outcome = "kept"
        except Broken as found:
            outcome, broken = f"BROKEN: {found}", broken + 1
        print(f"{given.seed}/{number} {act.__name__}: {'; '.join(scene.told)}: {outcome}", flush=True)
        if outcome == "kept" or not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
        number += 1
    print(f"{number - given.first} actions, {broken} broken promises, seed {given.seed}", flush=True)
    return int(broken > 0)


def _state(world: Path) -> dict[str, str]:
    """Return the checksums of all inputs; after a kill, SQLite's own files may stay beside its file."""
    files = (path for path in world.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    return {str(path.relative_to(world)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    sys.exit(main())
