import gc
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from bench import ucmerced
from tertium import methods
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import read_labels
from tertium.methods import make
from tertium.prediction.trained import Trained
from tertium.runs import RunFolder
from tertium.schemes import parse
from tertium.training import session
from tertium.training.session import Session
from tertium.training.train import train
from tests.conftest import SHARED


def problem(rng, images=300, classes=4):
    features = rng.normal(size=(images, 8)).astype(np.float32)
    return features, Labels.from_dense(np.where(features[:, :classes] > 0.7, 1, -1))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty small pictures: red or blue, with or without a bright square."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    lines = ["image,present,absent"]
    for number in range(40):
        red, square = rng.random(2) < 0.5
        pixels = rng.integers(0, 60, size=(48, 48, 3), dtype=np.uint8)
        pixels[..., 0 if red else 2] += 150
        if square:
            pixels[10:30, 10:30] = 250
        name = f"{number:02d}.png"
        Image.fromarray(pixels).save(folder / name)
        marks = {"red": red, "square": square}
        present = ";".join(mark for mark in marks if marks[mark])
        absent = ";".join(mark for mark in marks if not marks[mark])
        lines.append(f"{name},{present},{absent}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_run_folder_holds_what_was_done(tmp_path, rng):
    features, labels = problem(rng)
    out = tmp_path / "deep" / "run"
    outcome = train(
        labels,
        features=features,
        out=out,
        method="an",
        epochs=3,
        lr=0.01,
        positive_weight=2,
        scheme="full",
    )
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "images.npz",
        "log.txt",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "summary.json",
        "validation.npz",
    ]
    folder = RunFolder.open(out)
    settings, data = folder.config()["settings"], folder.config()["data"]
    assert settings["method"] == "negative"
    assert settings["parameters"] == {"positive_weight": 2.0}
    assert settings["head"]["epochs"] == 3
    assert data["scheme"] == "full"
    assert data["training_images"] + data["validation_images"] == 300
    assert len(data["validation"]) == data["validation_images"]
    assert 20 < data["validation_images"] < 70
    assert folder.records() == outcome.records
    summary = folder.summary()
    assert summary.pop("run") == folder.id()
    assert summary == json.loads(json.dumps(outcome.summary))
    loaded = Trained.load(out)
    np.testing.assert_array_equal(
        loaded.predict_proba(features=features), outcome.trained.predict_proba(features=features)
    )
    np.testing.assert_allclose(loaded.thresholds, outcome.trained.thresholds, atol=1e-6)


def test_the_saved_config_gives_the_same_run_again(tmp_path, rng):
    features, labels = problem(rng)
    first = train(labels, features=features, out=tmp_path / "a", method="wan", epochs=2, seed=7, lr=0.01)
    config = RunFolder.open(tmp_path / "a").config()["settings"]
    second = train(labels, features=features, config=config)
    torch.testing.assert_close(
        first.trained.model.state_dict(), second.trained.model.state_dict(), rtol=0, atol=0
    )


def test_the_seed_decides(rng):
    features, labels = problem(rng)
    before = torch.random.get_rng_state()
    one, same, other = (
        train(
            labels, features=features, epochs=2, seed=seed, method="sampled_negative"
        ).trained.model.head.weight
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())  # the caller's random numbers are left alone


OURS = [name for name, kind in methods.available().items() if kind.__module__.startswith("tertium.")]


@pytest.mark.parametrize("name", OURS)
def test_every_method_learns(name, rng):
    """Far above chance on an easy problem, under a scheme that the method can use."""
    features, labels = problem(rng, images=600)
    scheme = "full" if name.startswith("bce") else "random:0.5"
    partial = parse(scheme).apply(labels[:400], 0)
    trained = train(partial, features=features[:400], method=name, epochs=30, batch_size=16, lr=0.005).trained
    found = trained.evaluate(labels[400:], features=features[400:])
    assert found.scored == 4
    assert found.map_c > (0.6 if name == "ranking" else 0.8)


def test_bfloat16_trains_too(rng):
    features, labels = problem(rng)
    outcome = train(labels, features=features, precision="bf16-mixed", device="cpu")
    assert outcome.summary["validation_score"] > 0.8


def test_the_files_own_splits_are_used(rng):
    features, labels = problem(rng)
    names = ["train"] * 200 + ["val"] * 40 + ["test"] * 60
    labels = Labels(
        labels.offsets, labels.entries, labels.classes, labels.images, pa.array(names).dictionary_encode()
    )
    whole = train(labels, features=features, epochs=1)
    assert whole.summary["training_images"] == 200
    assert whole.summary["validation_images"] == 40
    used = train(labels, features=features[:240], epochs=1)
    torch.testing.assert_close(used.trained.model.state_dict(), whole.trained.model.state_dict())
    with pytest.raises(InputError, match="250 rows of inputs for 240 labelled images"):
        train(labels, features=features[:250], epochs=1)


def test_arrays_of_pixels_cover_the_file_or_the_parts_used(rng):
    pixels = rng.integers(0, 256, size=(12, 32, 32, 3), dtype=np.uint8)
    labels = Labels.from_dense(rng.choice([-1, 1], size=(12, 2)))
    splits = pa.array(["train"] * 8 + ["val"] * 2 + ["test"] * 2).dictionary_encode()
    labels = Labels(labels.offsets, labels.entries, labels.classes, labels.images, splits)
    whole, used = (train(labels, given, image_size=32, epochs=1) for given in (pixels, pixels[:10]))
    torch.testing.assert_close(used.trained.model.state_dict(), whole.trained.model.state_dict())


def test_without_validation_the_last_epoch_counts(rng):
    features, labels = problem(rng)
    outcome = train(labels, features=features, validation=0, epochs=3)
    assert outcome.summary["best_epoch"] == 3
    assert outcome.summary["validation_score"] is None
    assert (outcome.trained.thresholds == 0.5).all()


def test_the_expected_map_can_be_left_out(rng):
    """And nothing else changes by that."""
    features = rng.normal(size=(120, 6)).astype(np.float32)
    labels = Labels.from_dense(np.where(features[:, :3] > 0, 1, -1))
    whole, less = (
        train(labels, features=features, method="negative", epochs=2, expected_map=wanted)
        for wanted in (True, False)
    )
    assert whole.summary["expected_map"] is not None
    assert less.summary["expected_map"] is None
    assert less.records[-1]["loss"] == whole.records[-1]["loss"]
    assert less.summary["validation_score"] == whole.summary["validation_score"]


def test_one_image_one_class():
    outcome = train(Labels.from_dense([[1]]), features=np.ones((1, 2), dtype=np.float32), epochs=1)
    assert outcome.trained.predict_proba(features=np.ones((1, 2), dtype=np.float32)).shape == (1, 1)


def test_rows_without_labels_and_classes_without_positives_are_legal(rng):
    features, labels = problem(rng)
    matrix = labels.dense()
    matrix[:100] = 0
    matrix[:, 2] = -np.abs(matrix[:, 2])
    outcome = train(Labels.from_dense(matrix), features=features, epochs=2)
    assert np.isfinite(outcome.trained.predict_proba(features=features)).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_features_that_are_no_numbers_are_named(rng, tmp_path, wrong):
    features, labels = problem(rng)
    good = train(labels, features=features, method="negative", epochs=1).trained
    features[17, 3] = wrong
    with pytest.raises(InputError, match=f'features of image "{labels.images[17]}" hold a value'):
        train(labels, features=features, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if np.isnan(wrong):  # an infinity makes a class certain
        with pytest.raises(InputError, match="row 17 of the inputs"):
            good.predict_proba(features=features)


def test_a_run_leaves_nothing_in_memory(rng):
    """Not even until the next garbage collection: hundreds of runs in one process would pile up features."""
    features, labels = problem(rng)
    gc.collect()
    gc.disable()
    before = sum(type(each) is Session for each in gc.get_objects())  # that other tests hold
    try:
        train(labels, features=features, method="auto", epochs=1)
        assert sum(type(each) is Session for each in gc.get_objects()) == before
    finally:
        gc.enable()


def test_positives_only_can_be_validated(rng):
    features, labels = problem(rng)
    single = parse("single_positive").apply(labels, 0)
    outcome = train(single, features=features, lr=0.005)
    assert outcome.summary["validation_score"] > 0.3
    assert outcome.summary["validation_known_map"] is None
    assert (outcome.trained.thresholds != 0.5).any()


HEAD_QUICK = {"head.epochs": 8, "head.patience": 8, "head.lr": 0.003}
WHOLE_QUICK = {"whole.epochs": 2, "whole.batch_size": 8}


@pytest.mark.parametrize(
    ("protocol", "quick", "phases"),
    [
        ("linear", HEAD_QUICK, ["head"] * 8),
        ("linear_init", HEAD_QUICK | WHOLE_QUICK, ["head"] * 8 + ["whole"] * 2),
        ("finetune", WHOLE_QUICK | {"boost": 5}, ["whole"] * 2),
    ],
)
def test_protocols_on_images(tmp_path, photos, protocol, quick, phases):
    config = {"protocol": protocol, "image_size": 64, **quick}
    outcome = train(photos / "labels.csv", photos, out=tmp_path / "run", config=config)
    assert [record["phase"] for record in outcome.records] == phases
    loaded = Trained.load(tmp_path / "run")
    labels = read_labels(photos / "labels.csv")
    names = labels.images.to_pylist()
    direct = outcome.trained.predict_proba(photos, names=names)
    np.testing.assert_allclose(loaded.predict_proba(photos, names=names), direct, atol=1e-6)
    assert outcome.trained.model.center.any()  # standardised
    if protocol == "linear":  # the others need more than two epochs
        assert loaded.evaluate(labels, photos).map_c > 0.8


def test_a_whole_network_is_kept_as_late_as_images_allow(photos, monkeypatch):
    """With few known labels epochs differ by chance: the highest score of a whole network means little."""
    monkeypatch.setattr(session, "contributions", lambda *_: np.zeros(6))
    scores = iter(
        [score for each in (0.9, 0.8, 0.7) for score in (each, each)]
    )  # of all labels, and of known ones
    monkeypatch.setattr(session, "_mean", lambda _: next(scores))
    outcome = train(
        photos / "labels.csv",
        photos,
        method="negative",
        expected_map=False,
        config={"protocol": "finetune", "image_size": 32, "epochs": 3, "patience": 3, "batch_size": 8},
    )
    assert [record["score"] for record in outcome.records] == [0.9, 0.8, 0.7]
    assert outcome.summary["best_epoch"] == 3


@pytest.mark.parametrize(
    ("head", "kept"), [([0.3, -0.2, 0.3, -0.2], "whole"), ([0.3, 0.2, 0.3, 0.2], "head")]
)
def test_the_head_alone_is_kept_only_if_it_is_clearly_better(photos, monkeypatch, head, kept):
    judgements = iter([np.zeros(4), np.array(head)])  # of the one epoch of the whole network, and of the head
    monkeypatch.setattr(session, "contributions", lambda *_: next(judgements))
    config = {"protocol": "linear_init", "head.epochs": 1, "whole.epochs": 1, "image_size": 32}
    outcome = train(photos / "labels.csv", photos, method="negative", expected_map=False, config=config)
    assert outcome.summary["phase"] == kept


@pytest.mark.slow
def test_training_everything_gains_on_photographs():
    """Few photographs, far from those that the backbone was trained on."""
    folder = SHARED / "ucmerced"
    if not folder.is_dir():
        pytest.skip("no ../shared/data")
    full, test = ucmerced.read(folder, "train"), ucmerced.read(folder, "test")
    found = {}
    for protocol, settings in (("linear", {}), ("linear_init", {"whole.epochs": 4})):
        outcome = train(full, folder / "images", protocol=protocol, image_size=64, config=settings)
        assert outcome.summary["phase"] == ("head" if protocol == "linear" else "whole")
        found[protocol] = outcome.trained.evaluate(test, folder / "images").map_c
    assert found["linear_init"] > found["linear"] + 0.01


def test_the_head_is_kept_where_training_everything_makes_it_worse(photos, tmp_path):
    """A ruinous second phase must not cost what the first one found."""
    quick = {**HEAD_QUICK, **WHOLE_QUICK, "protocol": "linear_init", "image_size": 64}
    ruin = {"whole.lr": 10.0, "whole.backbone_lr": 10.0, "whole.ema": 0.0, "whole.clip": 0.0}
    linear = train(photos / "labels.csv", photos, config={"image_size": 64, **HEAD_QUICK})
    both = train(photos / "labels.csv", photos, config=quick | ruin, out=tmp_path / "run")
    assert both.summary["phase"] == "head"
    assert both.summary["validation_score"] == linear.summary["validation_score"]
    expected = linear.trained.predict_proba(photos)
    np.testing.assert_allclose(both.trained.predict_proba(photos), expected, atol=1e-6)
    np.testing.assert_allclose(Trained.load(tmp_path / "run").predict_proba(photos), expected, atol=1e-6)


def test_bad_calls_leave_nothing_behind(tmp_path, photos, rng):
    features, labels = problem(rng)
    out = tmp_path / "run"
    for call, message in (
        (lambda: train(labels, out=out), "either images or features"),
        (lambda: train(labels, photos, features=features, out=out), "either images or features"),
        (lambda: train(labels, features=features[:5], out=out), "5 rows of inputs for 300"),
        (lambda: train(labels, features=features, out=out, method="nothing"), 'no method "nothing"'),
        (lambda: train(labels, features=features, out=out, protocol="finetune"), "needs images"),
        (lambda: train(labels, photos, out=out), "300 of 300 labelled images are missing"),
        (
            lambda: train(photos / "labels.csv", photos, out=out, backbone="resnet18"),
            "HF_HUB_OFFLINE forbids",
        ),
        (lambda: train(photos / "none.csv", photos, out=out), "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            call()
        assert not out.exists()


def test_a_damaged_image_is_named_before_anything_is_written(tmp_path, photos):
    copy = tmp_path / "photos"
    copy.mkdir()
    for path in photos.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "07.png").write_bytes((photos / "07.png").read_bytes()[:500])
    for protocol in ("linear", "finetune"):
        with pytest.raises(InputError, match=r"07\.png: the image is damaged"):
            train(copy / "labels.csv", copy, out=tmp_path / "run", protocol=protocol, image_size=64)
        assert not (tmp_path / "run").exists()


def test_run_folders_are_not_overwritten_by_accident(tmp_path, rng):
    features, labels = problem(rng)
    out = tmp_path / "run"
    train(labels, features=features, out=out, epochs=1)
    with pytest.raises(InputError, match="already holds a run"):
        train(labels, features=features, out=out, epochs=1)
    train(labels, features=features, out=out, epochs=2, overwrite=True)
    assert len(RunFolder.open(out).records()) == 2
    (out / "review.sqlite").touch()
    with pytest.raises(InputError, match="holds people's answers"):
        train(labels, features=features, out=out, epochs=1, overwrite=True)
    assert len(RunFolder.open(out).records()) == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty and holds no run"):
        train(labels, features=features, out=tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_a_method_of_ones_own_needs_no_registration(rng):
    features, labels = problem(rng)
    outcome = train(labels, features=features, method=make("focal", {"gamma": 1.5}), epochs=2)
    assert outcome.summary["parameters"] == {"gamma": 1.5}


def test_predictions_are_checked_against_the_model(rng, photos):
    features, labels = problem(rng)
    trained = train(labels, features=features, epochs=1).trained
    with pytest.raises(InputError, match="trained on features; give features"):
        trained.predict_proba(photos)
    with pytest.raises(InputError, match="of width 8, not 3"):
        trained.predict_proba(features=features[:, :3])
    with pytest.raises(InputError, match="knows none of these classes"):
        trained.evaluate(Labels.from_dense([[1]], classes=["zebra"]), features=features[:1])


def test_classes_are_matched_by_name(rng):
    features, labels = problem(rng)
    trained = train(labels, features=features, lr=0.005).trained
    straight = trained.evaluate(labels, features=features)
    shuffled = trained.evaluate(labels.with_classes(["3", "1", "extra", "0", "2"]), features=features)
    np.testing.assert_array_equal(straight.ap, shuffled.ap)


def test_coco_linear_head_with_full_labels(coco):
    """The protocol's bar: at least 60.5 test mAP."""
    labels = read_labels(coco / "labels.csv", unlisted="absent")
    outcome = train(labels, features=coco / "train_features.npy", method="bce")
    found = outcome.trained.evaluate(labels.part("test"), features=coco / "test_features.npy")
    assert found.scored == 80
    assert found.map_c >= 0.605
