"""What chaos does: each action is drawn by a random generator of its own, and says which promise it broke."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.chaos.workers import LIMIT, Worker
from tests.chaos.world import COMMANDS, SERVERS, Command

KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_MB = 2**20


class Broken(Exception):
    """A promise that was not kept."""


def demand(kept: bool, promise: str) -> None:
    """Raise `Broken` unless a promise was kept."""
    if not kept:
        raise Broken(promise)


@dataclass(frozen=True)
class Undisturbed:
    """What a command gives if nothing disturbs it, and how long it takes."""

    results: dict[str, str]  # checksums
    seconds: float


@dataclass
class Scene:
    """Where one action happens: the inputs, the results of undisturbed commands, a folder of its own."""

    world: Path
    undisturbed: Callable[[Command], Undisturbed]
    place: Path
    rng: np.random.Generator
    told: list[str] = field(default_factory=list)  # what is done, in words
    env: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    def out(self, name: str = "out") -> Path:
        """Return a new folder for outputs."""
        made = self.place / name
        made.mkdir()
        return made

    def start(self, words: str, out: Path, world: Path | None = None, more: str = "") -> Worker:
        """Start a command."""
        self._count += 1
        given = f"{words} {more}".format(world=world or self.world, out=out).split()
        return Worker.command(given, self.place / f"log{self._count}.txt", self.env)

    def run(self, words: str, out: Path, world: Path | None = None, more: str = "") -> Worker:
        """Run a command to its end: it succeeds, or says in one sentence why not."""
        worker = self.start(words, out, world, more)
        worker.wait()
        check_end(worker, (0, 2))
        return worker


# ---- promises --------------------------------------------------------------------------------------------


def check_end(worker: Worker, codes: tuple[int, ...]) -> None:
    """Demand that a command has ended in one of these ways, with nothing that runs on and no traceback."""
    if worker.code is None:
        worker.signal(signal.SIGKILL)
        worker.wait()
        raise Broken(f"hung for {LIMIT:.0f} s")
    demand(not worker.leaves_processes(), "left processes behind")
    said = worker.said()
    demand("Traceback" not in said, f"a traceback: {said[-800:]}")
    demand(worker.code in codes, f"exit code {worker.code}: {said[-300:]}")
    if worker.code == 2:
        sentences = [line for line in said.splitlines() if line.startswith("Error: ")]
        demand(len(sentences) == 1, f"not one sentence: {said[-300:]}")


def hidden(folder: Path) -> list[str]:
    """Return what temporary files and folders there are."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.startswith("."))


def results(command: Command, out: Path) -> dict[str, str]:
    """Return the checksums of what a command has written, as far as it is the same each time."""
    found = {}
    for name in command.same:
        demand((out / name).is_file(), f"{name} is missing")
        content = (out / name).read_bytes()
        if name.endswith("metrics.jsonl"):  # the clock differs, and the checksum of the line with it
            records = [json.loads(line) for line in content.splitlines()]
            kept = [{k: v for k, v in each.items() if k not in ("seconds", "crc32")} for each in records]
            content = json.dumps(kept).encode()
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def check_results(scene: Scene, command: Command, out: Path) -> None:
    """Demand that a finished command gave what it gives undisturbed, and left nothing else."""
    demand(not hidden(out), f"left temporary files: {hidden(out)}")
    mine, wanted = results(command, out), scene.undisturbed(command).results
    demand(mine == wanted, f"other results: {[name for name in wanted if mine[name] != wanted[name]]}")


# ---- actions ---------------------------------------------------------------------------------------------


def drawn(scene: Scene) -> Command:
    """Draw a command."""
    command = COMMANDS[int(scene.rng.integers(len(COMMANDS)))]
    scene.told.append(" ".join(command.words.split()[:2]))
    return command


def _finish(scene: Scene, command: Command, out: Path) -> None:
    """Run a command that was stopped once more, as its user would."""
    more = command.again
    if command.name == "train":
        run = out / "run"
        if (run / "summary.json").is_file():
            return check_results(scene, command, out) if not hidden(out) else None
        if (run / "config.json").is_file():
            worker = scene.run("train --resume {out}/run", out)
            demand(worker.code == 0, f"was not resumed: {worker.said()[-300:]}")
            return check_results(scene, command, out)
    if command.name == "scenes" and (out / "new").exists():
        return check_results(scene, command, out)
    worker = scene.run(command.words, out, more=more)
    demand(worker.code == 0, f"failed the second time: {worker.said()[-300:]}")
    return check_results(scene, command, out)


def kill(scene: Scene) -> None:
    """End a command at a random moment, up to three times; then let it finish."""
    command, out = drawn(scene), scene.out()
    for _ in range(int(scene.rng.integers(1, 4))):
        number = KILLS[int(scene.rng.integers(len(KILLS)))]
        moment = float(scene.rng.random()) * 1.1 * scene.undisturbed(command).seconds
        scene.told.append(f"{number.name} after {moment:.2f} s")
        resumed = command.name == "train" and (out / "run" / "config.json").is_file()
        if resumed and (out / "run" / "summary.json").is_file():
            break
        words = "train --resume {out}/run" if resumed else command.words
        worker = scene.start(words, out, more="" if resumed else command.again)
        worker.wait(moment)
        worker.signal(number)
        worker.wait()
        # Before the command has begun to run, a signal ends it as it ends any process.
        check_end(worker, (0, -number, 128 + number) + ((2,) if command.name == "scenes" else ()))
        if number != signal.SIGKILL and worker.code:
            demand(command.name == "train" or not hidden(out), f"left temporary files: {hidden(out)}")
    _finish(scene, command, out)


def twice(scene: Scene) -> None:
    """Run the same command twice at once."""
    command, out = drawn(scene), scene.out()
    if command.name in ("scenes", "compare"):  # one would find the folder of the other
        command = COMMANDS[0]
    both = [scene.start(command.words, out, more=command.again) for _ in range(2)]
    for worker in both:
        worker.wait()
    for worker in both:
        check_end(worker, (0, 2))
    demand(
        0 in [worker.code for worker in both], f"both failed: {both[0].said()[-200:]} {both[1].said()[-200:]}"
    )
    check_results(scene, command, out)


def damage(scene: Scene) -> None:
    """Change, cut, remove or swap some bytes of what a command reads."""
    command, out = drawn(scene), scene.out()
    if not command.reads:
        return
    world = scene.place / "world"
    shutil.copytree(scene.world, world)
    for _ in range(int(scene.rng.integers(1, 3))):
        _hurt(scene, world, command.reads[int(scene.rng.integers(len(command.reads)))])
    worker = scene.run(command.words, out, world)
    demand(not hidden(out), f"left temporary files: {hidden(out)}")
    if worker.code == 2:
        left = [path.name for path in out.iterdir()]
        demand(not left or command.into != "{out}", f"failed, and left {left}")


def _hurt(scene: Scene, world: Path, name: str) -> None:
    rng, target = scene.rng, world / name
    if target.is_dir():
        files = sorted(path for path in target.rglob("*") if path.is_file())
        target = files[int(rng.integers(len(files)))] if files else target / "nothing"
    how = ("bits", "cut", "delete", "zeros", "foreign", "folder")[int(rng.integers(6))]
    scene.told.append(f"{how} in {target.relative_to(world)}")
    if not target.is_file():
        return
    content = bytearray(target.read_bytes())
    if how == "bits" and content:
        for place in rng.integers(len(content), size=int(rng.integers(1, 4))):
            content[place] ^= 1 << int(rng.integers(8))
    elif how == "cut":
        del content[int(rng.integers(len(content) + 1)) :]
    elif how == "zeros":
        start = int(rng.integers(len(content) + 1))
        content[start : start + 64] = bytes(len(content[start : start + 64]))
    elif how == "foreign":
        content = bytearray(rng.bytes(int(rng.integers(1, 4096))))
    target.unlink()
    if how == "folder":
        target.mkdir()
    elif how != "delete":
        target.write_bytes(content)


@contextmanager
def disk(scene: Scene, kind: str) -> Iterator[Path | None]:
    """Give a small file system, or one that cannot be written to; None where none can be made."""
    place, room = scene.out("disk"), int(scene.rng.integers(1, 32)) * 4096
    mount = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        scene.told.append("no file system can be mounted here")
        yield None
        return
    try:
        if kind == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        scene.told.append(f"on a {kind} disk of {room:,} bytes")
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(scene: Scene) -> None:
    """Let a command write to a disk that has too little room, or none that may be used."""
    command = drawn(scene)
    kind = ("full", "full", "read-only")[int(scene.rng.integers(3))]
    with disk(scene, kind) as out:
        if out is None:
            return
        worker = scene.run(command.words, out)
        demand(not hidden(out), f"left temporary files: {hidden(out)}")
        if worker.code == 0:
            check_results(scene, command, out)
        elif command.into == "{out}":
            whole = [name for name in command.same if (out / name).is_file()]
            for name in whole:  # of several files, those that are there are whole
                sealed = hashlib.sha256((out / name).read_bytes()).hexdigest()
                demand(sealed == scene.undisturbed(command).results[name], f"{name} is half-written")
        else:
            demand(kind == "full" or not any(out.iterdir()), "wrote to a disk that cannot be written to")


def cache(scene: Scene) -> None:
    """Damage the cache of features: they are the same again."""
    command = next(each for each in COMMANDS if each.name == "features")
    scene.told.append("features from a damaged cache")
    scene.env = {"TERTIUM_CACHE": str(scene.place / "cache")}
    demand(scene.run(command.words, scene.out()).code == 0, "features cannot be computed")
    for _ in range(int(scene.rng.integers(1, 4))):
        _hurt(scene, scene.place, "cache")
    worker = scene.run(command.words, scene.out("again"))
    if worker.code == 0:
        check_results(scene, command, scene.place / "again")


def serve(scene: Scene) -> None:
    """Ask a server while it is killed; what it has acknowledged is kept."""
    words, out = SERVERS[int(scene.rng.integers(len(SERVERS)))], scene.out()
    number = KILLS[int(scene.rng.integers(len(KILLS)))]
    scene.told += [" ".join(words.split()[:2]), number.name]
    worker = scene.start(words, out)
    port = _port(worker)
    acknowledged = 0
    until = time.monotonic() + float(scene.rng.random())
    while time.monotonic() < until or not acknowledged:
        acknowledged += _ask(scene, port, acknowledged, reviewing="review" in words)
    worker.signal(number)
    worker.wait(20)
    check_end(worker, (0, -number, 128 + number))
    if "review" in words:
        with sqlite3.connect(out / "kept.sqlite") as kept:
            (count,) = kept.execute("SELECT count(*) FROM answers").fetchone()
        demand(count >= acknowledged, f"{acknowledged} answers were acknowledged, {count} are kept")


def _port(worker: Worker) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until and worker.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", worker.said())
        if found:
            return int(found[1])
        time.sleep(0.02)
    raise Broken(f"no server: {worker.said()[-300:]}")


def _ask(scene: Scene, port: int, step: int, *, reviewing: bool) -> int:
    """Send a request, sensible or not; return whether it was acknowledged."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        if scene.rng.random() < 0.3:
            path = ("/predict", "/api/answer", "/nothing", "/image/99")[int(scene.rng.integers(4))]
            link.request("POST", path, body=scene.rng.bytes(int(scene.rng.integers(1, 3000))))
            reply = link.getresponse()
            demand(400 <= reply.status < 500, f"garbage at {path} gave {reply.status}")
            return 0
        if reviewing:
            answer = {"number": step % 4, "said": "present"}
            sent = {
                "who": "ada",
                "window": "w",
                "round": 1,
                "step": f"s{step}",
                "heat": False,
                "answers": [answer],
            }
            head = {"X-Tertium": "review", "Content-Type": "application/json"}
            link.request("POST", "/api/answer", json.dumps(sent), head)
        else:
            sent, head = {"features": [[0.1, 0.2, 0.3, 0.4]]}, {"Content-Type": "application/json"}
            link.request("POST", "/predict", json.dumps(sent), head)
        reply = link.getresponse()
        text = reply.read().decode()
        demand(reply.status == 200, f"a good request gave {reply.status}: {text[:200]}")
        return 1
    finally:
        link.close()


ACTIONS: tuple[tuple[Callable[[Scene], None], int], ...] = (  # with how often they are drawn
    (kill, 6),
    (damage, 6),
    (fill, 4),
    (twice, 2),
    (serve, 2),
    (cache, 1),
)
