"""Write what the pages take from the code: ``make docs``."""

from pathlib import Path

from tertium import methods

PAGE = Path(__file__).parent / "methods.md"
BEGIN, END = "<!-- table: make docs -->\n", "<!-- end of table -->\n"


def methods_page() -> str:
    """Return docs/methods.md with its table as the code has it; all else stays as it is written there."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE}: the table must stand between {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + methods_table() + END + after


def methods_table() -> str:
    """Return the table of Tertium's own methods."""
    lines = ["| name | aliases | paper | what it does | parameters |", "|---|---|---|---|---|"]
    for kind in methods.available().values():
        if not kind.__module__.startswith("tertium."):
            continue
        parameters = ", ".join(f"`{key}={value}`" for key, value in methods.parameters_of(kind).items())
        aliases = ", ".join(f"`{alias}`" for alias in kind.aliases)
        lines.append(
            f"| `{kind.name}` | {aliases} | {kind.paper} | {methods.one_line(kind)} | {parameters} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(methods_page(), encoding="utf-8")
