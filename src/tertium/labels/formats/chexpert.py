"""CheXpert: a wide table of findings in radiographs, with uncertain and blank cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from tertium.errors import InputError, did_you_mean
from tertium.labels.formats import wide
from tertium.labels.labels import Rule
from tertium.labels.reading import Reading

Blank = Literal["unknown", "absent"]
Uncertain = Literal["unknown", "present", "absent"]
_UNCERTAIN = "-1"


def read(
    path: str | Path,
    *,
    blank: Blank = "unknown",
    uncertain: Uncertain = "unknown",
    classes: Sequence[str] | None = None,
    contradictions: Rule = "error",
) -> Reading:
    """Read a CSV file with the column ``Path`` and one for each finding: 1.0, 0.0, -1.0 or nothing.

    1.0 is **present** and 0.0 **absent**: the report says so. -1.0 is uncertain: the report does not decide,
    so the label is **unknown**, or ``uncertain`` says what it is (CheXpert's U-Ones and U-Zeros). A blank
    cell is a finding that the report does not mention: **unknown**, unless ``blank`` says "absent".

    The classes are the columns other than Path, Sex, Age, Frontal/Lateral and AP/PA, or those of ``classes``.
    An image's id is its Path.
    """
    for what, value, kind in (("blank", blank, Blank), ("uncertain", uncertain, Uncertain)):
        if value not in get_args(kind):
            raise InputError(f'{what} cells cannot be "{value}"; {did_you_mean(value, get_args(kind))}')
    told = {_UNCERTAIN: uncertain, "": blank}
    usual = wide.PRESETS["chexpert"]
    layout = replace(
        usual,
        positive=(*usual.positive, *(value for value, meaning in told.items() if meaning == "present")),
        negative=(*usual.negative, *(value for value, meaning in told.items() if meaning == "absent")),
        unknown=tuple(value for value, meaning in told.items() if meaning == "unknown"),
    )
    try:
        return wide.read(path, layout, classes=classes, contradictions=contradictions)
    except wide.UnexplainedError as error:
        raise InputError(
            f"{error.what}; a finding is 1.0, 0.0, -1.0 or empty (name the findings with --classes if other "
            "columns are none)"
        ) from None
