"""The papers' own protocols as settings, and what they are made of."""

import json

import numpy as np
import pytest
import torch

from tertium.comparing.rows import resolved
from tertium.config import Settings, settings_from
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.readers import write_labels
from tertium.methods import available, parameters_of
from tertium.runs import RunFolder
from tertium.schemes import parse
from tertium.training.fit import rate_factor
from tertium.training.recipes import RECIPES, expanded, grid
from tertium.training.train import train


def problem(rng, images=300, classes=4):
    features = 3 + rng.normal(size=(images, 8)).astype(np.float32)
    return features, Labels.from_dense(np.where(features[:, :classes] > 3.7, 1, -1))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_one_for_every_method(name):
    for method in available():
        for protocol in ("linear", "linear_init", "finetune"):
            found = resolved(method, {"recipe": name, "protocol": protocol}, 0)
            assert (found["init"], found["standardise"], found["select"]) == ("torch", False, "clean")
            assert found["head"]["backbone_lr"] == 0
            assert found["whole"]["epochs"] == found["whole"]["patience"]
        for values in grid(name, method):
            resolved(method, {"recipe": name, **values}, 0)


def test_a_recipe_speaks_of_methods_that_there_are():
    for recipe in RECIPES.values():
        for key in recipe:
            owner, dot, parameter = key.partition(".")
            if dot and owner not in ("head", "whole"):
                assert parameter in parameters_of(available()[owner])


def test_what_is_given_beside_a_recipe_overrides_it():
    bare = settings_from(expanded({"recipe": "cole2021"}, "role"), ["lr_factor"])
    assert (bare.head.lr, bare.parameters) == (1e-4, {"lr_factor": 10.0, "optimizer": "dense"})
    values = {"lr": "1e-2", "recipe": "cole2021", "lr_factor": "5", "select": "last"}
    given = settings_from(expanded(values, "role"), ["lr_factor"])
    assert (given.head.lr, given.parameters["lr_factor"], given.select) == (0.01, "5", "last")
    assert settings_from(expanded({"recipe": "cole2021"}, "an")).parameters == {}
    assert expanded({"recipe": "none", "lr": 1}, "an") == {"lr": 1}
    assert expanded({"recipe": "kundu2020"}, "fe")["parameters.positive_weight"] == 5  # an alias


def test_a_recipe_of_ones_own(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        'init = "torch"\n[head]\nlr = 0.5\n[ll_r]\ndelta = 3\n[search]\nlr = [0.1, 0.2]\ndelta = [1]\n'
    )
    found = expanded({"recipe": str(own)}, "ll_r")
    assert found == {"init": "torch", "head.lr": 0.5, "parameters.delta": 3}
    assert grid(str(own), "ll_r") == [{"lr": 0.1, "delta": 1}, {"lr": 0.2, "delta": 1}]
    assert grid(str(own), "wan", ["weight_decay"]) == [{"lr": 0.1}, {"lr": 0.2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ('method = "wan"', "own.toml: a recipe says how to train; method is given beside it"),
        ('recipe = "cole2021"', "a recipe says how to train; recipe is given"),
        ("[rolle]\nk = 3", 'there is no method "rolle"; did you mean "role"'),
        ("[search]\nlr = 3", r"search\.lr must be a list of values to try, not 3"),
        ("[head]\nrate = 3", r'there is no setting "head\.rate"'),
        ("epoch = 3", 'there is no setting "epoch"; did you mean "epochs"'),
    ],
)
def test_a_recipe_that_is_wrong(tmp_path, text, message):
    own = tmp_path / "own.toml"
    if text is not None:
        own.write_text(text)
    with pytest.raises(InputError, match=message):
        settings_from(expanded({"recipe": str(own)}, "negative"))


def test_a_name_that_is_no_recipe():
    with pytest.raises(InputError, match='no recipe "cole2022"; did you mean "cole2021"'):
        expanded({"recipe": "cole2022"}, "negative")
    with pytest.raises(InputError, match='"3" is not a value for recipe'):
        expanded({"recipe": 3}, "negative")
    with pytest.raises(InputError, match=r"changes nothing beside the config\.json"):
        expanded({**Settings().to_dict(), "recipe": "cole2021"}, "negative")


def test_a_head_as_torch_makes_it(rng):
    features, labels = problem(rng)
    settings = {"method": "negative", "epochs": 1, "lr": 1e-9, "weight_decay": 0}
    random = [
        train(labels, features=features, init="torch", standardise=False, seed=seed, **settings).trained.model
        for seed in (0, 0, 1)
    ]
    weights = [model.head.weight for model in random]
    assert (
        0 < weights[0].abs().max() <= 8**-0.5 + 1e-6
    )  # torch draws them up to one over the root of the width
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not random[0].center.any()
    rest = train(labels, features=features, **settings).trained.model
    assert rest.head.weight.abs().max() < 1e-6
    assert rest.center.any()


def test_true_labels_choose_the_epoch_and_everybody_hears_it(rng, tmp_path):
    features, truth = problem(rng)
    known = parse("random:0.1").apply(truth, 0)
    settings = {"method": "negative", "epochs": 6, "lr": 0.1, "patience": 6}
    outcome = train(known, features=features, out=tmp_path / "run", select="clean", truth=truth, **settings)
    scores = [record["decides"] for record in outcome.records]
    assert outcome.summary["select"] == "clean"
    assert outcome.summary["best_epoch"] == 1 + int(np.argmax(scores))
    assert outcome.summary["validation_clean_map"] == max(scores)
    assert scores != [record["score"] for record in outcome.records]
    assert "chosen on TRUE labels" in RunFolder(tmp_path / "run").log_file.read_text()
    held_out = json.loads((tmp_path / "run" / "config.json").read_text())["data"]["validation"]
    rows = truth.rows_of(held_out)
    found = outcome.trained.evaluate(truth[rows], features=features[rows])
    assert found.map_c == pytest.approx(max(scores), abs=1e-6)


def test_without_a_choice_the_last_epoch_counts(rng):
    features, truth = problem(rng)
    known = parse("random:0.1").apply(truth, 0)
    for method in ("negative", "auto"):  # one that is chosen by its score, one by its own judgement
        outcome = train(known, features=features, method=method, select="last", epochs=7, patience=1)
        assert outcome.summary["best_epoch"] == 7
        assert outcome.records[-1]["score"] is not None


def test_true_labels_must_be_given(rng):
    features, labels = problem(rng)
    with pytest.raises(InputError, match=r"give them as truth \(--truth\)"):
        train(labels, features=features, method="negative", select="clean")
    with pytest.raises(InputError, match="needs validation images"):
        train(labels, features=features, method="negative", select="clean", truth=labels, validation=0)


def test_steps():
    plan = settings_from({"schedule": "steps", "warmup": 0}).resolved(100).head
    found = [rate_factor(plan, epoch / 36) for epoch in (0, 9, 11, 19, 21, 35)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_the_command(rng, tmp_path, tertium):
    features, truth = problem(rng)
    np.save(tmp_path / "x.npy", features)
    write_labels(truth, tmp_path / "truth.csv")
    write_labels(parse("random:0.2").apply(truth, 0), tmp_path / "known.csv")
    words = ["train", "--labels", tmp_path / "known.csv", "--features", tmp_path / "x.npy", "--method", "wan"]
    words += ["--out", tmp_path / "run", "recipe=cole2021", "epochs=2"]
    code, _, said = tertium(*words)
    assert code == 2
    assert "give them as truth (--truth)" in said
    assert not (tmp_path / "run").exists()
    code, told, said = tertium(*words, "--truth", tmp_path / "truth.csv")
    assert code == 0, said
    assert "The epoch was chosen by" in told
    assert "TRUE validation labels, which no user has" in told
    assert "by true labels" in (tmp_path / "run" / "report.html").read_text()
    code, _, said = tertium(*words, "--truth", tmp_path / "truth.csv", "--overwrite", "recipe=kim2021")
    assert (code, 'did you mean "kim2022"' in said) == (2, True)
