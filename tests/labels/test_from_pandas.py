"""Labels from a DataFrame; pandas itself is optional, so most tests use what `from_pandas` needs of it."""

from dataclasses import dataclass

import numpy as np
import pytest

from tertium.errors import InputError
from tertium.labels import Labels

NAN = float("nan")


@dataclass
class Frame:
    """The three parts of a DataFrame that are used."""

    cells: list
    index: list
    columns: list

    def to_numpy(self, dtype, na_value):
        table = np.empty((len(self.index), len(self.columns)), dtype=dtype)
        for place, value in enumerate(value for row in self.cells for value in row):
            table.flat[place] = na_value if value is None else value
        return table


def test_the_values_are_declared():
    frame = Frame([[1, 0, None], [0.0, NAN, True]], ["0012", 7], ["cat", "dog", "fox"])
    labels = Labels.from_pandas(frame, present=1, absent=0, unknown=NAN)
    assert labels.images.to_pylist() == ["0012", "7"]
    assert labels.classes == ("cat", "dog", "fox")
    np.testing.assert_array_equal(labels.dense(), [[1, -1, 0], [-1, 0, 1]])


def test_any_values_will_do():
    frame = Frame([["yes", "no"], ["no", "?"]], ["a", "b"], ["cat", "dog"])
    found = Labels.from_pandas(frame, present="yes", absent="no", unknown="?")
    np.testing.assert_array_equal(found.dense(), [[1, -1], [-1, 0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"present": 1, "absent": 0, "unknown": -1}, r'"dog" in "a": nan is none of the three values'),
        ({"present": 1, "absent": NAN, "unknown": NAN}, r'"dog" in "a": nan is two of the values'),
        ({"present": "1", "absent": 0, "unknown": NAN}, r'"cat" in "a": 1 is none of the three values'),
    ],
)
def test_nothing_is_guessed(values, message):
    with pytest.raises(InputError, match=message):
        Labels.from_pandas(Frame([[1, NAN], [1, 1]], ["a", "b"], ["cat", "dog"]), **values)


def test_ids_and_names_are_unique():
    with pytest.raises(InputError, match="an image id stands for two rows: a"):
        Labels.from_pandas(Frame([[1], [1]], ["a", "a"], ["cat"]), present=1, absent=0, unknown=NAN)
    with pytest.raises(InputError, match="a class is named twice: cat"):
        Labels.from_pandas(Frame([[1, 1]], ["a"], ["cat", "cat"]), present=1, absent=0, unknown=NAN)


@pytest.mark.parametrize("unknown", [None, NAN])
def test_every_missing_value_is_meant(unknown):
    frame = Frame([[1, None], [NAN, 0]], ["a", "b"], ["cat", "dog"])
    found = Labels.from_pandas(frame, present=1, absent=0, unknown=unknown)
    np.testing.assert_array_equal(found.dense(), [[1, 0], [0, -1]])


@pytest.mark.parametrize("kind", ["Int64", "boolean", "object"])
def test_missing_values_of_pandas(kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"cat": [1, pandas.NA], "dog": [0, 1]}, index=["a", "b"]).astype(kind)
    for unknown in (pandas.NA, None, NAN):
        found = Labels.from_pandas(frame, present=1, absent=0, unknown=unknown)
        np.testing.assert_array_equal(found.dense(), [[1, -1], [0, 1]])
        values = (True, False) if kind == "boolean" else (1, 0)
        named = {"present": values[0], "absent": values[1], "unknown": unknown}
        found = Labels.from_frame(frame.assign(image=["a", "b"]).reset_index(drop=True), **named)
        np.testing.assert_array_equal(found.dense(), [[1, -1], [0, 1]])


def test_a_true_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"cat": [1, None], "dog": [0, 1]}, index=["0012", "b"]).convert_dtypes()
    found = Labels.from_pandas(frame, present=1, absent=0, unknown=NAN)
    np.testing.assert_array_equal(found.dense(), [[1, -1], [0, 1]])
