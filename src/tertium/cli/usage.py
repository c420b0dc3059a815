"""Commands as typer runs them, with help and errors in the words of all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from tertium.config import setting_names
from tertium.errors import InputError, did_you_mean, nearest

# Not imported by name: some versions of typer have a copy of click inside, others use click itself.
_UsageError: Any = typer.BadParameter.__bases__[0]
# What people call options, and what they are called here: the first that a command has.
_OTHER_WORDS = {
    "count": ("budget", "sample", "top"),
    "number": ("count", "budget", "sample", "top"),
    "n": ("count", "budget", "sample", "top"),
    "limit": ("top", "budget", "sample", "count"),
    "output": ("out",),
    "dest": ("out",),
    "destination": ("out",),
    "dir": ("images",),
    "folder": ("images",),
    "photos": ("images",),
    "data": ("images",),
    "input": ("images", "labels"),
    "csv": ("labels",),
    "annotations": ("labels",),
    "force": ("overwrite",),
    "gpus": ("devices",),
    "processes": ("devices", "jobs"),
    "sep": ("separator",),
    "delimiter": ("separator",),
    "na": ("missing",),
    "continue": ("resume",),
}
_WORDS = {Path: "PATH", int: "NUMBER", float: "NUMBER", str: "TEXT", bool: ""}


class Command(TyperCommand):
    """A command whose help names values in words, not in Python's types."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options and arguments."""
        return _in_words(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read what was typed."""
        ctx.allow_extra_args = True  # said here in other words
        rest = super().parse_args(ctx, args)
        if rest:
            raise InputError(_without_place(ctx, rest[0]))
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, with what is needed as it is typed: RUN, not {RUN}."""
        return [
            piece.translate({ord("{"): None, ord("}"): None}) for piece in super().collect_usage_pieces(ctx)
        ]


class Commands(TyperGroup):
    """A group of commands, to which a slip of the pen is an `InputError` like any other."""

    def get_params(self, ctx: Any) -> Any:
        """Return the options."""
        return _in_words(super().get_params(ctx))

    def make_context(self, *words: Any, **extra: Any) -> Any:
        """Read the options before the command."""
        with _one_sentence():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read the options of the command, and run it."""
        with _one_sentence():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command."""
        if args[0] not in self.commands:
            raise InputError(f'there is no command "{args[0]}"; {did_you_mean(args[0], self.commands)}')
        return super().resolve_command(ctx, args)


# ---- help ------------------------------------------------------------------------------------------------


def _in_words(params: list[Any]) -> list[Any]:
    """Let parameters say what their values are: PATH, a|b, nothing for a flag; an argument's name says it."""
    for param in params:
        kind = getattr(param, "type_descriptor", None)
        if kind is not None:  # an older typer shows such words itself
            argument = param.param_type_name == "argument"
            word = "" if argument else _word(kind) if param.metavar is None else param.metavar
            param.display_type_rich = lambda ctx, word=word: word
    return params


def _word(kind: Any) -> str:
    if kind.choices is not None:
        return "|".join(_choices(kind))
    value = get_args(kind.annotation)[0] if get_origin(kind.annotation) is list else kind.annotation
    return _WORDS.get(value, "TEXT")


def _choices(kind: Any) -> list[str]:
    return [str(choice.value) for choice in kind.choices]


# ---- errors ----------------------------------------------------------------------------------------------


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn what typer would show in a box into an `InputError`."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise  # no error: the help was asked for by typing nothing
        raise InputError(_sentence(error)) from None


def _sentence(error: Any) -> str:
    command = "tertium" if error.ctx is None else error.ctx.command_path
    see = f"see {command} --help"
    option, param = getattr(error, "option_name", ""), getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        return f"{command} has no option {option}; {_instead(option.strip('-'), error.ctx) or see}"
    if option:
        return f"{option} takes no value" if "not take" in error.message else f"{option} needs a value"
    if param is None:
        return f"{error.message[:1].lower()}{error.message[1:].rstrip('.')}; {see}"
    name = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or param.name
    if hasattr(error, "param_type"):
        return f"{name} is missing; {see}"
    return f"{name} {_complaint(error, param)}"


def _instead(word: str, ctx: Any) -> str | None:
    """Say what stands for an option that a command does not have, if something does."""
    known = _long_names(ctx)
    if _takes_settings(ctx):
        setting = word.replace("-", "_")
        if setting in setting_names():
            return f"settings have no dashes: {setting}=VALUE"
    other = next((name for name in _OTHER_WORDS.get(word, ()) if name in known), None)
    near = other or nearest(word, known)
    return None if near is None else f"did you mean --{near}?"


def _takes_settings(ctx: Any) -> bool:
    return any(param.name == "settings" for param in ctx.command.get_params(ctx))


def _without_place(ctx: Any, word: str) -> str:
    """Say what to do with a word that no argument takes."""
    command = ctx.command_path
    option = "images" if Path(word).is_dir() else "labels" if Path(word).is_file() else None
    hint = f"did you mean --{option} {word}?" if option in _long_names(ctx) else f"see {command} --help"
    return f'{command} has no place for "{word}"; {hint}'


def _long_names(ctx: Any) -> list[str]:
    """Return the options of a command, without dashes: those would make any two alike."""
    given = [name for param in ctx.command.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]
    return [name[2:] for name in given if name.startswith("--")]


def _complaint(error: Any, param: Any) -> str:
    """Say what is wrong with a value, and what it could be."""
    kind, cause = getattr(param, "type_descriptor", None), error.__cause__
    if kind is None or not hasattr(cause, "errors"):
        return f"is wrong: {error.message}"
    value = cause.errors()[0]["input"]
    if kind.choices is not None:
        return f'cannot be "{value}"; {did_you_mean(str(value), _choices(kind))}'
    number = "a whole number" if kind.annotation is int else "a number"
    least, most = param.min, param.max
    if least is not None and most is not None:
        number += f" from {least} to {most}"
    elif least is not None:
        number += f" of at least {least}"
    elif most is not None:
        number += f" of at most {most}"
    return f'cannot be "{value}"; it must be {number}'
