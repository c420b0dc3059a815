"""Settings: frozen dataclasses, filled from a TOML or JSON file and key=value overrides."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from tertium.errors import InputError, did_you_mean

Protocol = Literal["linear", "linear_init", "finetune"]
Schedule = Literal["constant", "cosine", "one_cycle", "steps"]
# Where a head starts: at its method's own answer, or as torch makes it, at random and at one half.
Init = Literal["rest", "torch"]
# What chooses the epoch: known validation labels, all of them, which nobody has, or nothing.
Select = Literal["known", "clean", "last"]
# How `tertium compare` hides labels unless somebody says otherwise.
SCHEMES = "single_positive,random:0.1,random:0.3,positives:0.3,per_class:100,balanced:0.1"


_RATE, _AT_BATCH = 1e-3, 32  # of training everything
_BACKBONE = 0.5  # of the head's rate: more spoils what a network has learned before (docs/training.md)
# With fewer known present labels of a class there is less to learn and as much to spoil; less than a quarter
# of the rate was not tried.
_ENOUGH, _LEAST = 20, 0.25


@dataclass(frozen=True)
class Range:
    """The numbers that a setting accepts.

    >>> str(Range(0, 1, below=True))
    'at least 0 and below 1'
    >>> 0 in Range(0, 1, below=True), 1 in Range(0, 1, below=True), math.nan in Range(0, 1)
    (True, False, False)
    """

    low: float
    high: float
    above: bool = False  # rather than at least ``low``
    below: bool = False  # rather than at most ``high``

    def __contains__(self, value: float) -> bool:
        high_enough = value > self.low if self.above else value >= self.low
        return high_enough and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        low, high = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{low} {self.low:,} and {high} {self.high:,}"


Count = Annotated[int, Range(1, 1_000_000)]


# A class that nobody else knows any more is forgotten here, too.
_hints_of: WeakKeyDictionary[type[Any], dict[bool, Mapping[str, Any]]] = WeakKeyDictionary()


def _hints(kind: type[Any], extras: bool) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields, with what they are annotated with; milliseconds, once."""
    known = _hints_of.setdefault(kind, {})
    if extras not in known:
        known[extras] = typing.get_type_hints(kind, include_extras=extras)
    return known[extras]


def ranges(kind: type[Any]) -> Mapping[str, Range]:
    """Return the range of each setting that has one.

    >>> str(ranges(Settings)["image_size"])
    'at least 32 and at most 4,096'
    """
    found = {name: _range(hint) for name, hint in _hints(kind, True).items()}
    return {name: range for name, range in found.items() if range is not None}


def _range(hint: Any) -> Range | None:
    inner = (*getattr(hint, "__metadata__", ()), *typing.get_args(hint))
    return next((part if isinstance(part, Range) else _range(part) for part in inner), None)


def _check_ranges(settings: Any, kind: type[Any]) -> None:
    for name, accepted in ranges(kind).items():
        value = getattr(settings, name)
        if value is not None and value not in accepted:
            raise InputError(f"{name} must be {accepted}, not {value}")


@dataclass(frozen=True)
class Phase:
    """How one phase of training goes; what is None is chosen by the number of images or by the batch."""

    epochs: Count | None
    batch_size: Count | None
    lr: Annotated[float, Range(0, 100, above=True)] | None  # of the head
    backbone_lr: Annotated[float, Range(0, 100)] | None  # 0 where the backbone is frozen
    weight_decay: Annotated[float, Range(0, 1000)]
    schedule: Schedule
    warmup: Annotated[float, Range(0, 1, below=True)]  # share of the steps over which the rate rises
    clip: Annotated[float, Range(0, 1_000_000)]  # largest gradient norm; 0 = any
    ema: Annotated[float, Range(0, 1, below=True)]  # decay of the averaged weights that are kept; 0 = none
    patience: Count | None  # epochs without a better validation score before training stops

    def __post_init__(self) -> None:
        _check_ranges(self, Phase)

    def resolved(self, images: int, largest_batch: int, least_steps: int, examples: float = math.inf) -> Plan:
        """Fill in what was left open: few images still get small batches and enough steps.

        The rate goes with the root of the batch, as the noise of a step does. With fewer ``examples``, known
        present labels of a class on average, a backbone is trained more gently.

        >>> HEAD.resolved(17_000, 128, 1000).epochs, HEAD.resolved(200, 128, 1000).epochs
        (10, 40)
        >>> WHOLE.resolved(17_000, 32, 300).lr, WHOLE.resolved(200, 32, 300).lr
        (0.001, 0.0005)
        """
        fitting = max(8, 2 ** int(math.log2(max(images / 16, 1))))
        batch_size = self.batch_size or min(largest_batch, fitting)
        epochs = self.epochs or max(10, math.ceil(least_steps / math.ceil(images / batch_size)))
        patience = self.patience or max(5, epochs // 2)
        rate = _RATE * math.sqrt(batch_size / _AT_BATCH)
        found = {"epochs": epochs, "batch_size": batch_size, "patience": patience}
        gently = min(max(examples / _ENOUGH, _LEAST), 1.0)
        rates = {"lr": rate, "backbone_lr": _BACKBONE * rate * gently}
        found |= {name: value for name, value in rates.items() if getattr(self, name) is None}
        return Plan(**dataclasses.asdict(self) | found)


@dataclass(frozen=True)
class Plan(Phase):
    """A phase in which nothing is left open."""

    epochs: int
    batch_size: int
    lr: float
    backbone_lr: float
    patience: int


# docs/training.md says which of these were measured; the others, of WHOLE all but the rates, are customary.
HEAD = Phase(None, None, 3e-4, 0.0, 1.0, "cosine", 0.1, 0.0, 0.0, None)
WHOLE = Phase(None, None, None, None, 0.05, "one_cycle", 0.3, 1.0, 0.99, None)


TRACKERS = ("tensorboard", "mlflow", "wandb")


@dataclass(frozen=True)
class Settings:
    """All that decides the outcome of a training run, data apart."""

    method: str = "auto"
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the method
    protocol: Protocol = "linear"
    backbone: str = "tf_efficientnet_lite0"  # `tertium encoders`; docs/encoders.md
    weights: str | None = None  # "pretrained" by default, "random", or a file
    # Of a network from the hub: a commit, branch or tag. The run keeps the commit.
    revision: str | None = None
    # In pixels; by default what the network was made for.
    image_size: Annotated[int, Range(32, 4096)] | None = None
    # Whether the network sees the whole image, squashed, or the middle of it, as when it was evaluated.
    fit: Literal["squash", "crop"] = "squash"
    # Factor on positive class activations before pooling; where the backbone is trained.
    boost: Annotated[float, Range(1, 100)] = 1.0
    # Share of the training images, where the labels name no "val" split.
    validation: Annotated[float, Range(0, 1, below=True)] = 0.15
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    init: Init = "rest"
    standardise: bool = True  # the features, before the head sees them
    select: Select = "known"
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    device: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Annotated[int, Range(1, 1024)] = 1  # on this machine; each has a process of its own
    # Machines, under SLURM; torchrun says by itself how many there are.
    nodes: Annotated[int, Range(1, 1024)] = 1
    # Processes that decode images; by default one for each spare core.
    workers: Annotated[int, Range(0, 1024)] | None = None
    checkpoint_minutes: Annotated[float, Range(0, 100_000)] = 5.0  # between checkpoints
    # Trackers of experiments, such as tensorboard,mlflow (docs/training.md).
    log: str | None = None
    head: Phase = HEAD
    whole: Phase = WHOLE

    def __post_init__(self) -> None:
        _check_ranges(self, Settings)
        for name in self.trackers():
            if name not in TRACKERS:
                raise InputError(f'there is no tracker "{name}"; {did_you_mean(name, TRACKERS)}')
        if self.boost > 1 and "whole" not in self.phases():
            raise InputError(
                "boost needs the protocol finetune or linear_init: pooled features have no places"
            )

    def trackers(self) -> tuple[str, ...]:
        """Return the names of the trackers that are told about the run."""
        return tuple(name.strip() for name in (self.log or "").split(",") if name.strip())

    def phases(self) -> tuple[str, ...]:
        """Return which phases the protocol runs through."""
        return {"linear": ("head",), "linear_init": ("head", "whole"), "finetune": ("whole",)}[self.protocol]

    def resolved(self, images: int, examples: float = math.inf) -> Settings:
        """Return the settings for so many training images, and examples of a class: nothing is left open."""
        head, whole = self.head.resolved(images, 128, 1000), self.whole.resolved(images, 32, 300, examples)
        return dataclasses.replace(self, head=head, whole=whole)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self) | {"parameters": dict(self.parameters)}


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a ``.toml`` file, or the ``config.json`` of an earlier run."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            values = json.loads(text)
            return dict(values.get("settings", values))
        return tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnicodeDecodeError, json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not valid {path.suffix[1:].upper()} ({error})") from None


def parse_overrides(words: Collection[str]) -> dict[str, str]:
    """Turn ``["lr=1e-3", "head.epochs=5"]`` into a dictionary."""
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            if Path(word).exists():  # a shell has made many words of one
                raise InputError(f'"{word}" is a file, not a setting: put patterns such as "*.tar" in quotes')
            raise InputError(f'"{word}" is not a setting: write key=value, for example epochs=20')
        pairs[key.strip()] = value.strip()
    return pairs


def settings_from(values: Mapping[str, Any], method_parameters: Collection[str] = ()) -> Settings:
    """Build settings from nested or dotted keys.

    A bare key that is not a setting means a field of the protocol's phase (``epochs``, ``lr``, …) or one of
    ``method_parameters``.

    >>> settings_from({"epochs": "3", "head.lr": 0.01}).head.epochs
    3
    """
    plain: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {"head": {}, "whole": {}, "parameters": {}}
    protocol = values.get("protocol", Settings.protocol)
    for key, value in values.items():
        owner, _, inner = key.partition(".")
        if key in nested and isinstance(value, Mapping | Phase):
            nested[key] |= dataclasses.asdict(value) if isinstance(value, Phase) else value
        elif inner and owner in nested:
            nested[owner][inner] = value
        elif key in _names(Settings):
            plain[key] = value
        elif key in method_parameters:
            nested["parameters"][key] = value
        elif key in _names(Phase):
            nested[_only_phase(key, protocol)][key] = value
        else:
            choices = [*setting_names(), *method_parameters]
            raise InputError(f'there is no setting "{key}"; {did_you_mean(key, choices)}')
    converted = {key: convert(Settings, key, value) for key, value in plain.items()}
    return Settings(
        **converted,
        parameters=nested["parameters"],
        head=_phase(HEAD, nested["head"], "head"),
        whole=_phase(WHOLE, nested["whole"], "whole"),
    )


def setting_names() -> list[str]:
    """Return what can be given as KEY=VALUE, parameters of methods apart."""
    return [*_names(Settings), *_names(Phase), "recipe"]


def _names(kind: type[Any]) -> list[str]:
    return [item.name for item in dataclasses.fields(kind)]


def _only_phase(key: str, protocol: Any) -> str:
    if protocol == "linear_init":
        raise InputError(f'linear_init has two phases: say "head.{key}" or "whole.{key}"')
    return "whole" if protocol == "finetune" else "head"


def _phase(default: Phase, values: Mapping[str, Any], owner: str) -> Phase:
    for key in values:
        if key not in _names(Phase):
            raise InputError(f'there is no setting "{owner}.{key}"; {did_you_mean(key, _names(Phase))}')
    converted = {key: convert(Phase, key, value) for key, value in values.items()}
    return dataclasses.replace(default, **converted)


def convert(kind: type[Any], key: str, value: Any) -> Any:
    """Turn text into the type of a dataclass's field; check any other value against it.

    >>> convert(Phase, "lr", "1e-3")
    0.001
    """
    options = _options(_hints(kind, False)[key])
    if value in (None, "none") and type(None) in options:
        return None
    if bool in options and value in (True, False, "true", "false"):
        return value in (True, "true")
    for number in (int, float):
        if number in options and not isinstance(value, bool):
            try:
                converted = number(value)
            except (TypeError, ValueError, OverflowError):
                continue
            if not math.isfinite(converted):
                raise InputError(f"{key} must be a finite number, not {value}")
            if isinstance(value, str) or converted == value:
                return converted
    if isinstance(value, str) and (str in options or value in options):
        return value
    words = [option for option in options if isinstance(option, str)]
    if words and isinstance(value, str):
        raise InputError(f'"{value}" is not a value for {key}; {did_you_mean(value, words)}')
    expected = " or ".join(_readable(option) for option in options)
    raise InputError(f'"{value}" is not a value for {key}: it must be {expected}')


def _options(wanted: Any) -> tuple[Any, ...]:
    """Flatten unions and literals: ``Literal["a"] | None`` gives ("a", NoneType)."""
    if typing.get_origin(wanted) in (typing.Union, types.UnionType):
        return tuple(inner for option in typing.get_args(wanted) for inner in _options(option))
    return typing.get_args(wanted) if typing.get_origin(wanted) is Literal else (wanted,)


def _readable(option: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none", str: "text"}
    return names.get(option, str(option))
