import json

import pytest

from tertium.config import HEAD, WHOLE, Settings, parse_overrides, read_config, settings_from
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
        ({"ema": 1}, "ema must lie in"),
        ({"warmup": 1.5}, "warmup must lie in"),
        ({"clip": -1}, "clip must not be negative"),
        ({"weight_decay": "nan"}, "weight_decay must not be negative"),
        ({"schedule": "cosin"}, 'not a value for schedule; did you mean "cosine"'),
        ({"protocol": "liner"}, 'did you mean "linear"'),
        ({"validation": 1}, "validation share"),
        ({"image_size": 8}, "at least 32"),
        ({"boost": 0.5}, "boost must be at least 1"),
        ({"boost": 5}, "boost needs the protocol"),
        ({"seed": True}, "whole number"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(InputError, match=message):
        settings_from(values)


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
