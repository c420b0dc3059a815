"""How the papers trained, as settings: ``recipe=cole2021``, or a TOML file of your own.

A recipe is a shorthand for settings, which may be changed one by one. Keys are those of a run's settings,
with the phase in front; ``METHOD.PARAMETER`` counts for that method alone. ``search`` has the values that the
authors tried: `tertium compare --search` tries them too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from itertools import product
from typing import Any

from tertium.config import Phase, read_config
from tertium.errors import InputError, did_you_mean
from tertium.training.declared import declared, table

Recipe = Mapping[str, Any]
_PHASES = ("head", "whole")
_OWNERS = (*_PHASES, "parameters")

# A new linear layer on features as they are, and the epoch chosen on true labels: all of them did this.
_PLAIN = {"init": "torch", "standardise": False, "select": "clean"}


def _both(**phase: Any) -> dict[str, Any]:
    """Return the same settings for a head on frozen features and for the whole network."""
    # Every epoch is trained; what is best is found afterwards.
    said = {"clip": 0.0, "patience": phase["epochs"], **phase}
    return {f"{owner}.{key}": value for owner in _PHASES for key, value in said.items()} | {
        "head.backbone_lr": 0.0
    }


# From the papers and from what the authors published as code; docs/training.md says what is missing.
_ADAM = {"weight_decay": 0.0, "schedule": "constant", "warmup": 0.0, "ema": 0.0}
_COLE = _both(epochs=25, batch_size=16, lr=1e-4, backbone_lr=1e-4, **_ADAM)
_ROLE = {"role.lr_factor": 10.0, "role.optimizer": "dense"}
RECIPES: Mapping[str, Recipe] = {
    "cole2021": {
        **_PLAIN,
        **_COLE,
        "whole.epochs": 10,
        "whole.patience": 10,
        **_ROLE,
        "search": {"lr": [1e-2, 1e-3, 1e-4, 1e-5], "batch_size": [8, 16]},
    },
    # Their code has only training from end to end; its head is Cole's, whose code theirs is built on.
    "kim2022": {
        **_PLAIN,
        **_COLE,
        "whole.epochs": 10,
        "whole.patience": 10,
        "whole.backbone_lr": 1e-5,
        "ll_r.rate_of": "all",
        "ll_ct.rate_of": "all",
        "ll_cp.rate_of": "all",
        **_ROLE,
        "search": {"delta": [0.1, 0.2, 0.3, 0.4, 0.5]},
    },
    "benbaruch2021": {
        **_PLAIN,
        **_both(
            epochs=30,
            batch_size=64,
            lr=2e-4,
            backbone_lr=2e-4,
            weight_decay=1e-4,
            schedule="one_cycle",
            warmup=0.2,
            ema=0.9997,
        ),
        "selective.pool": "batch",
        "selective.eta": 0.05,
    },
    # With SGD, and so with rates that mean something else here.
    "kundu2020": {
        **_PLAIN,
        **_both(
            epochs=36,
            batch_size=24,
            lr=1e-3,
            backbone_lr=1e-3,
            weight_decay=5e-4,
            schedule="steps",
            warmup=0.0,
            ema=0.0,
        ),
        "negative.positive_weight": 5.0,
        "search": {"beta": [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]},
    },
    # One cycle of 80 epochs that is broken off after 31 rises for 16 of them, and hardly falls.
    "zhang2021": {
        **_PLAIN,
        **_both(
            epochs=31,
            batch_size=128,
            lr=1e-4,
            backbone_lr=1e-4,
            weight_decay=1e-4,
            schedule="constant",
            warmup=0.52,
            ema=0.9997,
        ),
    },
}


def read_recipe(name: str) -> dict[str, Any]:
    """Return a recipe by its name, or from a TOML file, with a dot between the parts of a key."""
    if name in RECIPES:
        return dict(RECIPES[name])
    if not name.endswith(".toml"):
        raise InputError(
            f'there is no recipe "{name}"; {did_you_mean(name, RECIPES)}, or give a file that ends in .toml'
        )
    found = _flat(read_config(name))
    for key in ("recipe", "method", "seed"):
        if key in found:
            raise InputError(f"{name}: a recipe says how to train; {key} is given beside it")
    for key, values in found.get("search", {}).items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{name}: search.{key} must be a list of values to try, not {values}")
    return found


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = value if isinstance(value, Mapping) and key != "search" else None
        found |= {key: value} if inner is None else {f"{key}.{name}": part for name, part in inner.items()}
    return found


def expanded(values: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Put what a recipe says for a method in the place of its name; whatever else was given overrides it.

    >>> found = expanded({"recipe": "cole2021", "lr": 1e-3}, "negative")
    >>> found["head.lr"], found["lr"], found["select"], "recipe" in found
    (0.0001, 0.001, 'clean', False)
    """
    others = {key: value for key, value in values.items() if key != "recipe"}
    name = values.get("recipe")
    if name in (None, "none"):
        return others
    if not isinstance(name, str):
        raise InputError(f'"{name}" is not a value for recipe: it must be a name or a TOML file')
    if all(_is_complete(values.get(owner)) for owner in _PHASES):
        raise InputError("a recipe changes nothing beside the config.json of a run, which says everything")
    return _of_method(read_recipe(name), _canonical(method)) | others


def grid(name: str, method: str, fixed: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the settings that the authors of a recipe tried, in every combination; what is fixed is not.

    >>> len(grid("cole2021", "negative")), grid("cole2021", "negative", ["lr"])
    (8, [{'batch_size': 8}, {'batch_size': 16}])
    >>> grid("kim2022", "negative")
    []
    """
    own = table().get(_canonical(method))
    known = {each.name for each in fields(Phase)} | set(own.parameters if own else ())
    tried = read_recipe(name).get("search", {})
    lists = {key: values for key, values in tried.items() if key in known and key not in fixed}
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())] if lists else []


def _of_method(recipe: Recipe, method: str) -> dict[str, Any]:
    """Return the settings of a recipe, and of the methods' parameters only those of this one."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        owner, dot, parameter = key.partition(".")
        if not dot or owner in _OWNERS:
            found |= {key: value} if key != "search" else {}
        elif owner == method:
            found[f"parameters.{parameter}"] = value
        else:
            declared(owner, ())  # raises if there is no such method
    return found


def _canonical(method: str) -> str:
    return next((own.name for own in table().values() if method in own.aliases), method)


def _is_complete(phase: object) -> bool:
    return isinstance(phase, Mapping) and len(phase) == len(fields(Phase))
