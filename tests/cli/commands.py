"""The commands as the command line has them, so that no test forgets a new one."""

from collections.abc import Iterator

import typer

from tertium.cli import app


def commands() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the name of each command, such as "convert coco", and its options with their types."""
    yield from _below(typer.main.get_command(app), "")


def _below(command, name) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    if hasattr(command, "commands"):
        for word, each in command.commands.items():
            yield from _below(each, f"{name} {word}".strip())
        return
    # Versions of typer keep a type in different places.
    kinds = {param.name: vars(param).get("type_descriptor") or param.type for param in command.params}
    yield name, [(option, str(getattr(kind, "annotation", kind))) for option, kind in kinds.items()]
