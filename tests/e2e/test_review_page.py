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

from tertium.annotation.together import Among
from tertium.data.scenes import render
from tertium.labelling.collective import Relation
from tertium.labels import Labels
from tertium.labels.readers import read_labels, write_labels
from tertium.models.classifier import Classifier
from tertium.models.encoders import pretrained
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
    backbone = pretrained("test_resnet", "random", 64)
    model = Classifier(tuple(classes), backbone.width, backbone)
    model.head.weight.data.uniform_(0, 0.05)  # every place speaks for every class, some more
    run = RunFolder.create(folder / "run")
    run.write_config({}, RunData())
    Trained(model, np.full(len(classes), 0.5)).save(run.path)
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
def pictures(request, tmp_path_factory):
    """Where screenshots go, to be looked at: .pytest_cache/d/review-page, if there is a cache."""
    cache = getattr(request.config, "cache", None)
    return tmp_path_factory.mktemp("review-page") if cache is None else cache.mkdir("review-page")


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


def test_an_answer_moves_the_other_bars_of_its_image(server, visit):
    with sqlite3.connect(server.kept) as file:
        (image,) = file.execute("SELECT image FROM questions WHERE number = 0").fetchone()
        found = file.execute("SELECT label FROM questions WHERE image = ? ORDER BY number", (image,))
        labels = tuple(label for (label,) in found)
        # The first tells much about the second, and less about the others.
        alike = np.full((len(labels), len(labels)), 0.3) + 0.7 * np.eye(len(labels))
        alike[0, 1] = alike[1, 0] = 0.8
        sides = np.outer([-1, 1], np.ones(len(labels)))
        slope = np.full(len(labels), 2.0)
        among = Among(alike, np.full(len(labels), 0.2), np.zeros(len(labels)), sides, slope)
        file.execute("UPDATE questions SET probability = 0.5 WHERE image = ?", (image,))
        relation = Relation(labels, among).as_json()
        file.execute("INSERT INTO relations SELECT max(id), ?, ? FROM rounds", (image, relation))
    page = visit(server.start())
    assert seen(page)[0] == image

    def bars():
        cards = page.locator("li.question").all()
        return [float(card.locator("progress").get_attribute("value")) for card in cards]

    before = bars()
    words = page.locator("li.question .chance").all_inner_texts()
    assert len(before) > 2
    press(page, "y")
    after = bars()
    assert after[0] == before[0]
    assert all(later > first + 0.05 for first, later in zip(before[1:], after[1:], strict=True))
    assert page.locator("li.question .chance").all_inner_texts()[1:] != words[1:]
    current = page.locator("li.question[aria-current=true] .label")
    assert current.inner_text() == labels[2]  # the second is nearly known: the third tells more
    page.reload()
    ready(page)
    assert current.inner_text() == labels[2]
    press(page, "u")
    assert current.inner_text() == labels[0]
    assert bars() == before


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


class Held:
    """Responses for photos that wait until they are let go."""

    def __init__(self, page):
        self.routes, self.is_open = [], False
        page.route("**/image/*", self._take)

    def _take(self, route):
        if self.is_open:
            route.continue_()
        else:
            self.routes.append(route)

    def let_go(self):
        self.is_open = True
        for route in self.routes:
            route.continue_()


def test_nothing_is_answered_before_the_photo_is_there(server, visit, pictures):
    """The old photo is gone at once, keys and buttons do nothing, and the page says so."""
    page = visit(server.start())
    first, labels = seen(page)
    assert page.locator("#image").is_visible()
    held = Held(page)
    page.reload()  # what was loaded ahead is in the browser's cache; a reload asks again
    page.wait_for_selector("main.loading")
    assert not page.locator("#image").is_visible()
    assert "Keys and buttons do nothing until it is there" in page.locator("#unseen").inner_text()
    assert seen(page)[0] == first
    for key in ("y", "n", "a", "s", "ArrowRight", "u"):
        page.keyboard.press(key)
    page.locator("li.question button.present").first.click()
    assert "Not counted" in page.locator("#status").inner_text()
    page.screenshot(path=pictures / "loading.png")
    assert server.log() == []
    held.let_go()
    ready(page)
    assert page.locator("#image").is_visible()
    assert not page.locator("#unseen").is_visible()
    press(page, "y")
    assert server.log() == [("ada", first, next(iter(labels)), "present")]


def test_the_next_photo_hides_the_last(server, visit):
    page = visit(server.start())
    first = seen(page)[0]
    held = Held(page)
    page.route("**/api/next", lambda route: route.fulfill(json=unseen_photo(route)))
    page.keyboard.press("a")  # the last of this image
    page.wait_for_selector("main.loading")
    assert seen(page)[0] != first
    assert not page.locator("#image").is_visible()
    before = len(server.log())
    page.keyboard.press("y")
    page.wait_for_selector("text=Not counted")
    held.let_go()
    ready(page)
    assert len(server.log()) == before


def unseen_photo(route):
    """Let the next photo have an address that the browser cannot have in its cache."""
    found = route.fetch().json()
    return found | {"version": found["version"] + "-again"}


def test_a_photo_that_cannot_be_shown_can_only_be_skipped(server, visit):
    page = visit(server.start())
    page.route("**/image/*", lambda route: route.fulfill(status=200, content_type="image/jpeg", body=b"no"))
    page.reload()
    ready(page)
    assert "Only skip is possible." in page.locator("#unseen").inner_text()
    press(page, "y")
    assert "Only skip is possible" in page.locator("#status").inner_text()
    assert server.log() == []
    press(page, "s")
    assert [row[3] for row in server.log()] == ["skip"]


def scale(page):
    return page.evaluate("new DOMMatrix(getComputedStyle(document.getElementById('layers')).transform).a")


def offset(page):
    matrix = "new DOMMatrix(getComputedStyle(document.getElementById('layers')).transform)"
    return page.evaluate(f"[{matrix}.e, {matrix}.f]")


def test_zoom_and_pan(server, visit, pictures):
    page = visit(server.start())
    box = page.locator("#picture").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert scale(page) == 1
    page.keyboard.press("+")
    page.keyboard.press("=")
    assert scale(page) == pytest.approx(2.25)
    assert page.locator("#level").inner_text() == "225 %"
    before = offset(page)
    page.keyboard.press("Shift+ArrowRight")  # moves, and answers nothing
    assert offset(page)[0] == pytest.approx(before[0] - 0.2 * box["width"], abs=1)
    assert server.log() == []
    page.keyboard.press("-")
    assert scale(page) == pytest.approx(1.5)
    page.keyboard.press("0")
    assert (scale(page), offset(page)) == (1, [0, 0])
    page.keyboard.press("Shift+ArrowRight")  # the whole photo stays where it is
    assert offset(page) == [0, 0]

    page.mouse.move(box["x"] + 50, box["y"] + 40)
    page.mouse.wheel(0, -200)
    page.wait_for_function("document.getElementById('level').textContent !== '100 %'")
    grown = scale(page)
    assert grown > 1.2
    # What was under the pointer still is.
    assert offset(page) == pytest.approx([50 * (1 - grown), 40 * (1 - grown)], abs=1)
    page.keyboard.press("0")
    page.mouse.dblclick(*middle)
    assert scale(page) == pytest.approx(2.5)
    start = offset(page)
    page.mouse.down()
    page.mouse.move(middle[0] + 60, middle[1] - 30, steps=3)
    page.mouse.up()
    assert offset(page) == pytest.approx([start[0] + 60, start[1] - 30], abs=1)
    page.screenshot(path=pictures / "zoomed.png")
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 5000, middle[1], steps=3)  # never beyond its edge
    page.mouse.up()
    assert offset(page)[0] == 0
    page.mouse.dblclick(*middle)
    assert scale(page) == 1
    page.get_by_role("button", name="Zoom in").click()
    assert scale(page) == pytest.approx(1.5)
    press(page, "y")
    assert scale(page) == pytest.approx(1.5)  # the same photo, the next label
    press(page, "a")
    assert scale(page) == 1  # another photo


PINCH = """([x, y]) => {
  const box = document.getElementById('picture');
  const send = (kind, id, dx) => box.dispatchEvent(new PointerEvent(kind, {
    pointerId: id, pointerType: 'touch', clientX: x + dx, clientY: y, bubbles: true }));
  box.setPointerCapture = () => {};
  send('pointerdown', 1, -20); send('pointerdown', 2, 20);
  send('pointermove', 1, -40); send('pointermove', 2, 40);
  send('pointerup', 1, -40); send('pointerup', 2, 40);
}"""


def test_two_fingers_enlarge(server, visit):
    page = visit(server.start(), has_touch=True)
    box = page.locator("#picture").bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    page.evaluate(PINCH, middle)
    assert scale(page) == pytest.approx(2)
    assert offset(page) == pytest.approx([-box["width"] / 2, -box["height"] / 2], abs=1)
    page.evaluate(PINCH, middle)
    assert scale(page) == pytest.approx(4)


def test_two_people_answer_everything_and_see_where_they_differ(server, visit, pictures):
    address = server.start("--answers-per-question", 2)
    one = visit(address)
    first, labels = seen(one)
    press(one, "y")
    press(one, "a")  # now this window has another image
    assert f"0 of {BUDGET} answered by 2 people" in one.locator("#counts").inner_text()
    two = visit(address)
    two.fill("#who", "bob")
    two.press("#who", "Enter")
    ready(two)
    for _ in range(BUDGET):  # this window had begun with another image
        if seen(two)[0] == first:
            break
        press(two, "a")
    assert seen(two) == (first, dict.fromkeys(labels))  # nobody sees what others said
    press(two, "n")
    assert server.log()[-1] == ("bob", first, next(iter(labels)), "absent")
    assert f"1 of {BUDGET} answered by 2 people" in two.locator("#counts").inner_text()
    two.goto(f"{address}results")
    ready(two)
    words = "several answers: 1; people differ on 1, 1 of them undecided"
    assert words in two.inner_text("#agreement")
    assert two.locator("#people tbody tr").count() == 2
    assert "present: ada · absent: bob" in two.inner_text("#differing")
    with sqlite3.connect(server.kept) as file:
        times = [seconds for (seconds,) in file.execute("SELECT seconds FROM answers")]
    assert all(0 <= seconds < WAIT / 1000 for seconds in times)
    for name, width, scheme in (
        (f"results-{scheme}-{width}", width, scheme) for scheme in ("light", "dark") for width in (400, 1200)
    ):
        two.set_viewport_size({"width": width, "height": 900})
        two.emulate_media(color_scheme=scheme)
        two.screenshot(path=pictures / f"{name}.png", full_page=True)
        assert two.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


@pytest.mark.slow
def test_names_are_text_and_the_page_fits_every_screen(server, visit, pictures):
    address = server.start()
    for name, about in {
        "wide": {},
        "dark": {"color_scheme": "dark"},
        "phone": {"viewport": {"width": 400, "height": 844}, "has_touch": True, "is_mobile": True},
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
