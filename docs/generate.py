"""Write the pages that come from the code: ``make docs``."""

from pathlib import Path

from tertium import methods

PAGE = Path(__file__).parent / "methods.md"


def methods_page() -> str:
    """Return docs/methods.md."""
    lines = [
        "# The methods",
        "",
        "Written by `make docs` from the code; `tertium methods` prints the same. Parameters are given as",
        "`key=value` after the options of `tertium train`, or by name to `tertium.train`.",
        "",
        "| name | aliases | paper | what it does | parameters |",
        "|---|---|---|---|---|",
    ]
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
