import dataclasses
import json
import math
import re
import typing
from pathlib import Path

import pytest

from tertium.config import HEAD, WHOLE, Phase, Settings, parse_overrides, ranges, read_config, settings_from
from tertium.errors import InputError


def test_defaults():
    settings = settings_from({})
    assert settings == Settings()
    assert settings.phases() == ("head",)


def test_bare_keys_belong_to_the_phase_of_the_protocol():
    assert settings_from({"epochs": "3"}).head.epochs == 3
    tuned = settings_from({"protocol": "finetune", "epochs": 3})
    assert tuned.whole.epochs == 3
    assert tuned.head == HEAD
    both = settings_from({"protocol": "linear_init", "head.epochs": 2, "whole.lr": "1e-4"})
    assert (both.head.epochs, both.whole.lr) == (2, 1e-4)
    assert both.phases() == ("head", "whole")
    with pytest.raises(InputError, match=r'say "head\.epochs" or "whole\.epochs"'):
        settings_from({"protocol": "linear_init", "epochs": 3})


def test_method_parameters_are_collected():
    settings = settings_from({"positive_weight": "5", "parameters.other": 1}, ["positive_weight"])
    assert settings.parameters == {"positive_weight": "5", "other": 1}


def test_survives_json():
    settings = settings_from({"protocol": "finetune", "lr": 0.1, "workers": 3, "weights": "random"})
    assert settings_from(json.loads(json.dumps(settings.to_dict()))) == settings


def test_files(tmp_path):
    toml = tmp_path / "run.toml"
    toml.write_text('method = "wan"\nseed = 3\n[whole]\nepochs = 2\n')
    settings = settings_from(read_config(toml))
    assert (settings.method, settings.seed, settings.whole.epochs) == ("wan", 3, 2)
    saved = tmp_path / "config.json"
    saved.write_text(json.dumps({"settings": settings.to_dict(), "data": {}}))
    assert settings_from(read_config(saved)) == settings
    toml.write_text("method = ")
    with pytest.raises(InputError, match="not valid TOML"):
        read_config(toml)
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, 'no setting "epoch"; did you mean "epochs"'),
        ({"head.epoch": 3}, r'no setting "head\.epoch"; did you mean "epochs"'),
        ({"epochs": "three"}, '"three" is not a value for epochs: it must be a whole number'),
        ({"epochs": 2.5}, "whole number"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": "-1"}, "lr must be above 0"),
        ({"epochs": float("inf")}, '"inf" is not a value for epochs'),
        ({"lr": "inf"}, "lr must be a finite number, not inf"),
        ({"lr": 1000}, "lr must be above 0 and at most 100, not 1000"),
        ({"ema": 1}, "ema must be at least 0 and below 1, not 1"),
        ({"warmup": 1.5}, "warmup must be at least 0 and below 1, not 1.5"),
        ({"clip": -1}, "clip must be at least 0 and at most 1,000,000, not -1"),
        ({"weight_decay": "nan"}, "weight_decay must be a finite number, not nan"),
        ({"schedule": "cosin"}, 'not a value for schedule; did you mean "cosine"'),
        ({"protocol": "liner"}, 'did you mean "linear"'),
        ({"validation": 1}, "validation must be at least 0 and below 1, not 1"),
        ({"seed": -1}, "seed must be at least 0 and at most 4,294,967,295, not -1"),
        ({"seed": 2**32}, "seed must be at least 0"),
        ({"workers": -1}, "workers must be at least 0"),
        ({"devices": 0}, "devices must be at least 1"),
        ({"checkpoint_minutes": "-inf"}, "checkpoint_minutes must be a finite number"),
        ({"image_size": 8}, "at least 32"),
        ({"boost": 0.5}, "boost must be at least 1"),
        ({"boost": 5}, "boost needs the protocol"),
        ({"seed": True}, "whole number"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(InputError, match=message):
        settings_from(values)


def test_ranges_hold_also_where_no_text_is_converted():
    with pytest.raises(InputError, match="lr must be above 0 and at most 100, not inf"):
        dataclasses.replace(HEAD, lr=math.inf)
    with pytest.raises(InputError, match="seed must be at least 0"):
        Settings(seed=-1)
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        dataclasses.replace(HEAD.resolved(100, 128, 1000), batch_size=0)


def test_every_number_has_a_range_and_the_page_shows_it():
    numbers = [
        (kind, name)
        for kind in (Settings, Phase)
        for name, hint in typing.get_type_hints(kind).items()
        if {int, float} & {hint, *typing.get_args(hint)}
    ]
    assert len(numbers) == 17
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    for kind, name in numbers:
        assert re.search(rf"^\|.*`{name}`.* \| {ranges(kind)[name]} \|$", page, re.MULTILINE), name


def test_bad_settings_are_refused_before_anything_is_read(tertium, tmp_path):
    words = ("train", "--labels", tmp_path / "none.csv", "--features", tmp_path / "none.npy", "--out")
    for setting in ("lr=inf", "seed=-1", "positive_weight=inf"):
        code, _, said = tertium(*words, tmp_path / "run", "--method", "negative", setting)
        assert code == 2
        assert f"{setting.partition('=')[0]} must be" in said


def test_overrides():
    assert parse_overrides(["lr=1e-3", "weights = a=b"]) == {"lr": "1e-3", "weights": "a=b"}
    with pytest.raises(InputError, match='"lr" is not a setting: write key=value'):
        parse_overrides(["lr"])


def test_what_is_left_open_depends_on_the_number_of_images():
    large, small = (settings_from({}).resolved(images).head for images in (17_000, 100))
    assert (large.epochs, large.batch_size, large.patience) == (10, 128, 5)
    assert small.batch_size == 8
    assert small.epochs * 13 >= 1000
    said = settings_from({"epochs": 3, "batch_size": 100}).resolved(100).head
    assert (said.epochs, said.batch_size) == (3, 100)
    assert settings_from({}).resolved(100).resolved(17_000).head == small  # resolved is resolved


def test_only_the_whole_phase_trains_the_backbone():
    assert HEAD.backbone_lr == 0
    assert WHOLE.resolved(1000, 32, 300).backbone_lr > 0


def test_a_backbone_is_trained_more_gently_than_its_head():
    plan = settings_from({"protocol": "finetune"}).resolved(3000).whole
    assert (plan.lr, plan.backbone_lr) == (1e-3, 5e-4)
    said = settings_from({"protocol": "finetune", "backbone_lr": 2e-4}).resolved(3000).whole
    assert (said.lr, said.backbone_lr) == (1e-3, 2e-4)


@pytest.mark.parametrize(("examples", "rate"), [(100, 5e-4), (20, 5e-4), (10, 2.5e-4), (0, 1.25e-4)])
def test_few_known_present_labels_train_a_backbone_more_gently(examples, rate):
    plan = settings_from({"protocol": "finetune"}).resolved(3000, examples).whole
    assert (plan.lr, plan.backbone_lr) == (1e-3, rate)
    said = settings_from({"protocol": "finetune", "backbone_lr": 7e-4}).resolved(3000, examples).whole
    assert said.backbone_lr == 7e-4
    assert settings_from({}).resolved(3000, examples).head.backbone_lr == 0
