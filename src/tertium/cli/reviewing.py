"""Commands that open a page for answers, and write these as labels."""

from __future__ import annotations

import getpass
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import (
    IMAGES_HELP,
    LabelsFile,
    RunArgument,
    SplitName,
    Unlisted,
    UnlistedChoice,
    console,
    read,
    reads_labels,
    say,
    summary_of,
    watching,
    writes_files,
)
from tertium.errors import InputError

if TYPE_CHECKING:
    from tertium.labels import Labels
    from tertium.prediction.trained import Trained
    from tertium.web.reviewing.summary import Summary

AnswersFile = Annotated[
    Path | None, typer.Option("--answers", help="Where the answers are kept (default: in the run).")
]


@reads_labels
def review(
    run: RunArgument,
    labels: LabelsFile,
    images: Annotated[
        str | None, typer.Option(metavar="PLACE", help=f"What people look at. {IMAGES_HELP}")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Ready features for the model, instead of the images: .npy.")
    ] = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    budget: Annotated[int, typer.Option(min=1, help="How many questions.")] = 500,
    per_image: Annotated[int, typer.Option(min=1, help="At most so many about one image.")] = 5,
    answers_per_question: Annotated[
        int, typer.Option(min=1, max=100, help="Ask each question until so many people have answered it.")
    ] = 1,
    answers: AnswersFile = None,
    name: Annotated[str | None, typer.Option(help="Who answers; the page can change it.")] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond this machine, a token is needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8765,
) -> None:
    """Open a page on which people say whether labels are present, the most informative ones first.

    **Examples**

      tertium review runs/first --labels labels.csv --images photos/

      tertium answers runs/first --labels labels.csv --out answers.csv

      tertium train --labels labels.csv --answers answers.csv --images photos/ --out runs/second

    The questions are those of `tertium suggest`. Every answer is on disk before the next question is shown;
    started again, the page continues where it stopped. With --features the images are only displayed, not fed
    to the model. With --answers-per-question 2 everything is asked until two people have answered it; nobody
    sees what others said. `tertium answers` writes what most of them say as a label file.
    """
    from tertium.runs import RunFolder

    folder = RunFolder.open(run)
    found = read(labels, unlisted, None)
    if images is None and features is None:
        raise InputError("give the images that people look at: --images PLACE")
    part = found if split is None else found.part(split)
    _review(
        folder.path,
        part,
        images,
        features,
        budget,
        per_image,
        answers_per_question,
        answers or folder.answers_file,
        _user() if name is None else name,
        host,
        port,
    )


@reads_labels
@writes_files("{stem}-contradictions.csv", "{stem}-agreement.csv")
def answers(
    run: RunArgument,
    labels: LabelsFile,
    out: Annotated[Path, typer.Option(help="The label file: .csv, .tsv, .parquet or .arrow.")],
    answers: AnswersFile = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    agreement: Annotated[
        bool, typer.Option("--agreement", help="Show how far people agree, by class and by person.")
    ] = False,
    ahead: Annotated[
        int, typer.Option("--next", min=1, help="How many answers ahead to say what they will bring.")
    ] = 100,
) -> None:
    """Write what people answered on the review page as a label file.

    **Examples**

      tertium answers runs/first --labels labels.csv --out answers.csv

      tertium answers runs/first --labels labels.csv --out answers.csv --agreement --next 200

    A label is written as most people say it, and left out if as many say the one as the other. A file beside
    it lists where they differ, from each other or from the label file; --agreement adds one with
    Krippendorff's alpha. `tertium train --answers` learns from the answers.
    """
    from tertium.runs import RunFolder
    from tertium.web.reviewing.answers import Answers, Standing
    from tertium.web.reviewing.results import export
    from tertium.web.reviewing.summary import Summary, pace

    log = Answers.existing(answers or RunFolder.open(run).answers_file)
    done = export(log, read(labels, unlisted, None), out)
    say(f"{summary_of(done.labels)} → {out}")
    among = [each for each in done.contradictions if each.among_people]
    undecided = sum(each.decided == 0 for each in among)
    against = sum(each.given != 0 for each in done.contradictions)
    say(
        f"Contradictions: {len(among):,} between people ({undecided:,} undecided and left out), "
        f"{against:,} with the label file → {done.table}"
    )
    summary = Summary.of(Standing.of(log), log.last_round(), ahead)
    if agreement:
        _say_agreement(summary, out.with_name(f"{out.stem}-agreement.csv"))
    if summary.forecast is not None:
        say(f"{summary.forecast.words()}. {pace(summary) or ''}".rstrip())


def _say_agreement(summary: Summary, table_file: Path) -> None:
    from tertium.cli.terminal import table
    from tertium.web.reviewing.summary import write_agreement

    say(summary.words())
    for of, shares in (("person", summary.people), ("class", summary.classes)):
        rows = [
            [
                each.name,
                *(f"{count:,}" for count in (each.answers, each.present, each.shared, each.differ)),
                "—" if math.isnan(each.alpha) else f"{each.alpha:.2f}",
                "—" if each.seconds is None else f"{each.seconds:.1f}",
            ]
            for each in shares
        ]
        header = [of, "answers", "present", "shared", "differ", "alpha", "seconds"]
        console().print(table(header, rows))
    write_agreement(summary, table_file)
    say(f"Agreement → {table_file}")


def _review(
    run: Path,
    labels: Labels,
    images: str | None,
    features: Path | None,
    budget: int,
    per_image: int,
    per_question: int,
    kept: Path,
    who: str,
    host: str,
    port: int,
) -> None:
    try:
        from tertium.web.reviewing.access import Access
        from tertium.web.reviewing.app import check_name, make_app, serve
        from tertium.web.sockets import listen
    except ModuleNotFoundError as error:
        raise InputError(f"the page needs {error.name}: pip install 'tertium[web]'") from None
    from tertium.cli.terminal import counted
    from tertium.data.pictures import SourcePictures
    from tertium.data.sources.opening import open_source
    from tertium.web.reviewing.answers import Answers
    from tertium.web.reviewing.desk import Desk, find_round
    from tertium.web.reviewing.views import Views

    pictures = None
    if images is not None:
        pictures = SourcePictures.of(open_source(images), labels.images.to_pylist())
    who, access = check_name(who), Access.at(host)
    with listen(host, port) as at, watching() as progress:
        log = Answers(kept)
        fed = None if features is not None else images
        found = find_round(
            log, run, labels, fed, features, budget=budget, per_image=per_image, progress=progress
        )
        views = Views(pictures, None if features is not None else lambda: _load(run))
        app = make_app(Desk(log, labels, found, per_question), views, access, run=run.name, who=who)
        shown = counted(len({question.image for question in found.questions}), "images")
        say(f"{counted(len(found.questions), 'questions')} about {shown}; answers are kept in {kept}")
        for note in found.notes:
            say(f"Note: {note}.")
        say(f"Open {_address(host, at.getsockname()[1], access.token)} — stop with Ctrl+C")
        serve(app, at)
        log.close()


def _load(run: Path) -> Trained:
    from tertium.prediction.trained import Trained

    return Trained.load(run)


def _address(host: str, port: int, token: str | None) -> str:
    import socket

    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    place = f"http://{f'[{name}]' if ':' in name else name}:{port}/"
    return place if token is None else f"{place}?token={token}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such account, as in some containers
        return "someone"
