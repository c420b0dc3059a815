"""The review page in a real browser: nothing that was pressed is lost, and the keyboard is enough."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from tertium.data.scenes import render
from tertium.labels import Labels
from tertium.labels.readers import read_labels, write_labels
from tertium.models.classifier import Classifier, pretrained
from tertium.prediction.trained import Trained
from tertium.runs import RunData, RunFolder
from tertium.schemes import parse
from tertium.web.reviewing.answers import Answers
from tertium.web.reviewing.desk import find_round

CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no browser at {CHROMIUM}")
EVIL = "<img src=x onerror=alert(1)>"
WAIT = 120_000  # milliseconds; the machine may be busy
# What the browser says of a server that is gone, or that was killed while pictures were on their way.
KILLED = re.compile(r"net::ERR_(CONNECTION_(REFUSED|RESET|CLOSED)|EMPTY_RESPONSE|SOCKET_NOT_CONNECTED)")
BUDGET = 12


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run with a model that knows nothing, its labels and images, and questions that are already chosen."""
    folder = tmp_path_factory.mktemp("world")
    scenes = render(24, seed=3)
    names = [f"{EVIL} {row:03d}.png" for row in range(24)]
    classes = [f"{name} {EVIL}" for name in scenes.labels.classes]
    (folder / "photos").mkdir()
    for name, pixels in zip(names, scenes.images, strict=True):
        Image.fromarray(pixels).save(folder / "photos" / name)
    full = Labels.from_dense(scenes.labels.dense(), classes=classes, images=names)
    write_labels(parse("random:0.3").apply(full, 0), folder / "labels.csv")
    backbone = pretrained("test_resnet", "random")
    model = Classifier(tuple(classes), backbone.width, backbone)
    model.head.weight.data.uniform_(0, 0.05)  # every place speaks for every class, some more
    run = RunFolder.create(folder / "run")
    run.write_config({}, RunData())
    Trained(model, np.full(len(classes), 0.5), 64).save(run.path)
    answers = Answers(run.path / "review.sqlite")
    labels = read_labels(folder / "labels.csv")
    find_round(answers, run.path, labels, folder / "photos", None, budget=BUDGET, per_image=4)
    answers.close()
    return folder


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


class Server:
    """`tertium review` in a process of its own, with answers of its own."""

    def __init__(self, world, kept):
        self.world, self.kept, self.process = world, kept, None
        self.port = 0  # any that is free; started again, the same

    def start(self, *more):
        """Start, and return the address that is printed."""
        data = ("--labels", self.world / "labels.csv", "--images", self.world / "photos", "--budget", BUDGET)
        words = ("review", self.world / "run", *data, "--per-image", 4, "--name", "ada", *more)
        command = [sys.executable, "-m", "tertium", *words, "--answers", self.kept, "--port", self.port]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for line in self.process.stdout:
            if line.startswith("Open "):
                address = line.split()[1]
                self.port = urlsplit(address).port
                return address
        raise AssertionError("the server did not start")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def log(self):
        with sqlite3.connect(self.kept) as file:
            return file.execute("SELECT who, image, label, answer FROM answers ORDER BY id").fetchall()


@pytest.fixture
def server(world, tmp_path):
    kept = tmp_path / "kept.sqlite"
    shutil.copy(world / "run" / "review.sqlite", kept)
    found = Server(world, kept)
    yield found
    if found.process.poll() is None:
        found.kill()


@pytest.fixture
def visit(browser):
    """Open a page in a browser of its own; at the end, nothing may have gone wrong in it."""
    contexts, wrong = [], []

    def opened(address, **about):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | about)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        page.goto(address)
        ready(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [text for text in wrong if not KILLED.search(text)] == []


@pytest.fixture(scope="session")
def pictures(request):
    """Where screenshots go, to be looked at: .pytest_cache/d/review-page."""
    return request.config.cache.mkdir("review-page")


def ready(page):
    page.wait_for_selector("main[aria-busy=false]")


def press(page, key):
    page.keyboard.press(key)
    ready(page)


def seen(page):
    """The image, and what is said of its labels."""
    cards = page.locator("li.question").all()
    said = {card.locator(".label").inner_text(): card.get_attribute("data-said") for card in cards}
    return page.locator("#name").inner_text(), said


def test_answers_outlive_a_reload_an_undo_and_a_killed_server(server, visit):
    page = visit(server.start())
    image, said = seen(page)
    labels = list(said)
    assert len(labels) > 2
    assert page.locator("#undo").is_disabled()  # nothing was answered
    press(page, "y")
    assert page.locator("#undo").is_enabled()
    page.reload()
    ready(page)
    assert seen(page) == (image, dict.fromkeys(labels) | {labels[0]: "present"})
    press(page, "u")
    assert seen(page) == (image, dict.fromkeys(labels))
    assert page.locator("#undo").is_disabled()
    press(page, "n")
    press(page, "a")  # the rest of them
    other = seen(page)[0]
    assert other != image
    expected = [("present", 0), ("undo", 0), ("absent", 0), *(("absent", n) for n in range(1, len(labels)))]
    assert server.log() == [("ada", image, labels[number], answer) for answer, number in expected]

    server.kill()
    page.keyboard.press("y")
    page.wait_for_selector("text=Not saved yet")
    page.keyboard.press("n")  # nothing is answered while the last answer is on its way
    server.start()
    page.wait_for_selector("text=Saved.")
    ready(page)
    assert seen(page)[1][next(iter(seen(page)[1]))] == "present"
    assert [row[3] for row in server.log()[len(expected) :]] == ["present"]
    press(page, "u")
    assert server.log()[-1][3] == "undo"

    page.context.close()  # the browser is closed, and opened again
    again = visit(f"http://127.0.0.1:{server.port}/")
    assert f"{len(labels)} of {BUDGET} answered" in again.locator("#counts").inner_text()


def test_two_windows_get_different_images(server, visit):
    address = server.start()
    one, two = visit(address), visit(address)
    two.fill("#who", "bob")
    two.press("#who", "Enter")
    ready(two)
    assert seen(one)[0] != seen(two)[0]
    asked = [(name, seen(page)[0]) for name, page in (("ada", one), ("bob", two))]
    for page in (one, two):
        press(page, "y")
    assert [row[:2] for row in server.log()] == asked
    press(one, "u")
    assert server.log()[-1][:2] == asked[0]
    assert seen(two)[1][next(iter(seen(two)[1]))] == "present"


def test_the_keyboard_is_enough(server, visit):
    page = visit(server.start())
    _, said = seen(page)
    labels = list(said)
    page.keyboard.press("ArrowDown")
    current = page.locator("li.question[aria-current=true] .label")
    assert current.inner_text() == labels[1]
    press(page, "ArrowLeft")
    assert seen(page)[1][labels[1]] == "absent"
    press(page, "ArrowUp")  # back to what was answered: it may be changed
    page.keyboard.press("ArrowUp")
    for _ in range(30):  # by Tab alone, to a button that says what it does
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        if focused == f"Present: {labels[0]}":
            break
    assert focused == f"Present: {labels[0]}"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press(page, "Enter")
    assert seen(page)[1][labels[0]] == "present"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Present: ")
    before = len(server.log())
    page.focus("#who")
    page.keyboard.type("yansuh")  # a name, not answers
    assert len(server.log()) == before


def test_one_class_until_nothing_is_left(server, visit, pictures, tmp_path):
    page = visit(server.start())
    name, count = re.fullmatch(r"(.+) \((\d+)\)", page.locator("#only option").nth(1).inner_text()).groups()
    page.select_option("#only", name)
    ready(page)
    for place in range(int(count)):
        assert list(seen(page)[1]) == [name]
        press(page, "s" if place == 0 else "y")
    assert page.locator("#end-title").inner_text() == f"No more questions about {name}"
    page.screenshot(path=pictures / "end.png")
    assert [row[2:] for row in server.log()] == [(name, "skip"), *[(name, "present")] * (int(count) - 1)]
    page.select_option("#only", "")
    ready(page)
    while page.locator("#sheet").is_visible():
        press(page, "n")
    assert page.locator("#end-title").inner_text() == "No more questions"
    with page.expect_download() as download:
        page.click("text=Answers as a label file")
    download.value.save_as(tmp_path / "answers.csv")
    assert read_labels(tmp_path / "answers.csv").known == BUDGET - 1


@pytest.mark.slow
def test_names_are_text_and_the_page_fits_every_screen(server, visit, pictures):
    address = server.start()
    for name, about in {
        "wide": {},
        "dark": {"color_scheme": "dark"},
        "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
    }.items():
        page = visit(address, **about)
        assert seen(page)[0].startswith(EVIL)
        assert page.locator("#image").evaluate("image => image.naturalWidth") == 64
        press(page, "y")
        page.screenshot(path=pictures / f"{name}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert all(label.endswith(EVIL) for label in seen(page)[1])
        assert EVIL in page.locator("#only option").nth(1).inner_text()


@pytest.mark.slow
def test_from_elsewhere_only_with_the_token(server, visit, browser):
    address = server.start("--host", "0.0.0.0")
    token = address.partition("token=")[2]
    local = f"http://127.0.0.1:{server.port}/"
    stranger = browser.new_context().new_page()
    assert stranger.goto(local).status == 403
    assert "with its token" in stranger.inner_text("body")
    stranger.context.close()
    page = visit(f"{local}?token={token}")
    assert page.url == local  # not to be read over a shoulder, nor to stay in the history
    press(page, "y")
    assert len(server.log()) == 1
    assert token not in page.evaluate("document.cookie + JSON.stringify(localStorage)")
    page.reload()
    ready(page)
    assert page.locator("li[data-said=present]").count() == 1


@pytest.mark.slow
def test_where_the_model_looks_lies_over_the_image(server, visit, pictures):
    page = visit(server.start())
    page.keyboard.press("h")
    page.wait_for_selector("#heat:not([hidden])")
    boxes = [page.locator(name).bounding_box() for name in ("#image", "#heat")]
    assert boxes[0] == boxes[1]
    current = page.locator("li.question[aria-current=true] .label").inner_text()
    assert page.locator("#legend").inner_text().startswith(f"Where the model looks for {current}")
    page.screenshot(path=pictures / "heat.png")
    page.keyboard.press("h")
    assert not page.locator("#heat").is_visible()
    assert not page.locator("#legend").is_visible()
