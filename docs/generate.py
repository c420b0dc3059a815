"""Write what the pages take from the code: ``make docs``."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import tertium
from bench import ablation, claims, tuned, whole
from bench.cells import Evidence
from tertium import methods
from tertium.config import SCHEMES
from tertium.training import method_table

PAGE = Path(__file__).parent / "methods.md"
API = Path(__file__).parent / "api.md"
SPEED = Path(__file__).parent / "speed.md"
PAGES = sorted(Path(__file__).parent.glob("*.md"))
CLAIMS = Path(__file__).parent / "results.md"
RESULTS = Path(__file__).parents[1] / "bench" / "results.json"
TABLE = Path(method_table.__file__)
BEGIN, END = "<!-- table: make docs -->\n", "<!-- end of table -->\n"
FIGURES = re.compile(
    r"(<!-- figures: ([^|>]+?)((?: \| [^|>]+?)*) -->\n).*?(<!-- end of figures -->\n)", re.DOTALL
)
RUNS = re.compile(r"(<!-- evidence: ([^>]+?) -->\n).*?(<!-- end of evidence -->\n)", re.DOTALL)


def methods_page() -> str:
    """Return docs/methods.md with its table as the code has it; all else stays as it is written there."""
    return with_table(PAGE, methods_table())


def with_table(page: Path, table: str) -> str:
    """Return a page with another table between its two marks."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page}: the table must stand between {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + table + END + after


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


def table_module() -> str:
    """Return the module that knows Tertium's own methods before torch is loaded."""
    lines = [
        f"{kind.name} | {' '.join(kind.aliases)} | {' '.join(methods.parameters_of(kind))}".rstrip()
        for kind in methods.available().values()
        if kind.__module__.startswith("tertium.")
    ]
    before, quotes, _ = TABLE.read_text(encoding="utf-8").partition('METHODS = """')
    return before + quotes + "\n" + "\n".join(lines) + '\n"""\n'


def claims_page() -> str:
    """Return docs/results.md with the papers' claims as bench/claims.py lists them, and tables of runs."""
    return with_evidence(with_table(CLAIMS, claims.table()))


def with_evidence(text: str) -> str:
    """Return a page on which tables of runs stand between ``<!-- evidence: BENCH … -->`` and its end."""
    return RUNS.sub(lambda found: found[1] + evidence(*found[2].split()) + found[3], text)


def evidence(name: str, *words: str) -> str:
    """Return a table of single runs: of which bench, and what that takes."""
    if name == "tuned":
        return tuned.Tuned(Evidence(tuned.FILE)).table(SCHEMES.split(","))
    if name == "ablation":
        return ablation.Ablation(Evidence(ablation.FILE), None).table(*words)
    tables = whole.Tables(whole.opened())
    return {"ways": tables.ways, "gains": tables.gains, "curves": tables.curves}[words[0]](*words[1:])


# ---- what was measured -------------------------------------------------------------------------------------


def speed_page() -> str:
    """Return docs/speed.md with the figures of bench/results.json."""
    return with_table(SPEED, speed_table(json.loads(RESULTS.read_text(encoding="utf-8"))))


def speed_table(results: dict[str, Any]) -> str:
    """Return where and with what was measured, and a line for each figure."""
    machine, versions = results["machine"], results["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    lines = [
        f"Measured on {results['date']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']:g} GB; {packages}.",
        "",
        "| part | what | figure | target | |",
        "|---|---|---|---|---|",
    ]
    for each in results["rows"]:
        met = {True: "met", False: "**missed**", None: ""}[each["met"]]
        lines.append(
            f"| {each['part']} | {each['case']} | {as_figure(each['value'])} | {each['target']} | {met} |"
        )
    return "\n".join(lines) + "\n"


def with_figures(text: str, results: dict[str, Any]) -> str:
    """Return a page on which what was measured stands between ``<!-- figures: part | words -->`` and its end.

    The rows are those of the part; with words behind bars, those whose case has any of these.
    """

    def table(found: re.Match[str]) -> str:
        begin, part, words, end = found.groups()
        wanted = words.split(" | ")[1:] or [""]
        rows = [
            row for row in results["rows"] if row["part"] == part and any(w in row["case"] for w in wanted)
        ]
        if not rows:
            raise SystemExit(f'bench/results.json has no figures of "{part}" with "{" or ".join(wanted)}"')
        lines = [f"| {row['case']} | {as_figure(row['value'])} |" for row in rows]
        return begin + "\n".join(["| `make bench` | |", "|---|---|", *lines]) + "\n" + end

    return FIGURES.sub(table, text)


def as_figure(value: float) -> str:
    """Return a figure with three digits, or more before the point.

    >>> as_figure(0.45678), as_figure(12.34), as_figure(1234.5), as_figure(2e-17)
    ('0.457', '12.3', '1,234', '2e-17')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


# ---- the public names --------------------------------------------------------------------------------------


def api_page() -> str:
    """Return docs/api.md with what the docstrings say; headings and examples stay as they are written there.

    A section is headed ``### `tertium.name` ``. What lies between that and its example is written anew.
    """
    parts = re.split(r"(?m)^(### `tertium\.(\w+)`\n)", API.read_text(encoding="utf-8"))
    found = [parts[0]]
    for heading, name, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        begin = re.search(r"(?m)^(```python|## )", text)
        rest = text[begin.start() :] if begin else ""
        found.append(f"{heading}\n{described(getattr(tertium, name), name)}\n{rest}")
    return "".join(found)


def described(value: Any, name: str) -> str:
    """Return the signature and the docstring of a public name, as Markdown."""
    text = inspect.getdoc(value) or ""
    prose = re.split(r"(?m)^>>> ", text)[0].strip()
    prose = re.sub(r"``(.+?)``", r"`\1`", prose)
    if inspect.ismodule(value):
        return f"{prose}\n"
    return f"```text\n{signature(value, name)}\n```\n\n{prose}\n"


def signature(value: Any, name: str) -> str:
    """Return how something is called, a line for each argument where one line is not enough.

    >>> def add(first: int, *, second: int = 2) -> int: ...
    >>> signature(add, "add")
    'tertium.add(first: int, *, second: int = 2) -> int'
    """
    if isinstance(value, type) and issubclass(value, Exception):
        return f"tertium.{name}(message)"
    call = inspect.signature(value)
    each = [argument(parameter) for parameter in call.parameters.values()]
    kinds = [parameter.kind for parameter in call.parameters.values()]
    named = [place for place, kind in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY]
    if named and inspect.Parameter.VAR_POSITIONAL not in kinds:
        each.insert(named[0], "*")
    given = call.return_annotation
    gives = (
        "" if given in (inspect.Signature.empty, "None", None) or isinstance(value, type) else f" -> {given}"
    )
    line = f"tertium.{name}({', '.join(each)}){gives}"
    return line if len(line) <= 100 else f"tertium.{name}(\n    " + ",\n    ".join(each) + f",\n){gives}"


def argument(parameter: inspect.Parameter) -> str:
    """Return an argument with its type and default; types are text here, not objects."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {parameter.default!r}"
    return text


if __name__ == "__main__":
    PAGE.write_text(methods_page(), encoding="utf-8")
    API.write_text(api_page(), encoding="utf-8")
    SPEED.write_text(speed_page(), encoding="utf-8")
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    for page in PAGES:
        page.write_text(with_figures(page.read_text(encoding="utf-8"), measured), encoding="utf-8")
    CLAIMS.write_text(claims_page(), encoding="utf-8")
    TABLE.write_text(table_module(), encoding="utf-8")
