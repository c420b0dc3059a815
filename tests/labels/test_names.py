"""Names as newcomers write them are read right, noted, or refused in one sentence that says what to do."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertium.errors import InputError
from tertium.labels import Labels
from tertium.labels.names import joined, look_alike, tidy
from tertium.labels.readers import LabelFile, read_classes, read_labels, write_labels
from tertium.labels.renaming import twins, write_renaming

ANIMALS = ["badger", "deer", "fox", "hare", "owl"]


def write(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def notes(path, **how):
    return LabelFile(path, **how).read().notes


def compact(separator, seed=0, images=60):
    """Return a compact file whose names are separated by something, and the same with a semicolon."""
    rng = np.random.default_rng(seed)
    lines = {separator: ["image,present,absent"], ";": ["image,present,absent"]}
    for number in range(images):
        chosen = rng.permutation(ANIMALS)[: rng.integers(1, 4)]
        for mark, text in lines.items():
            text.append(f'{number}.jpg,"{mark.join(chosen)}",')
    return "\n".join(lines[separator]) + "\n", "\n".join(lines[";"]) + "\n"


# ---- separators --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", "|", ", ", " | ", " "])
def test_another_separator_is_refused_with_the_option_that_reads_it(tmp_path, separator):
    other, usual = compact(separator)
    path, expected = write(tmp_path, other), read_labels(write(tmp_path, usual, "usual.csv"))
    mark = separator.strip() or separator
    with pytest.raises(InputError, match=r"names become 5 if they are split there") as raised:
        read_labels(path)
    assert f"say --separator '{mark}', or --separator ';' if these are single names" in str(raised.value)
    assert read_labels(path, separator=mark) == expected
    assert len(read_labels(path, separator=";").classes) > 5  # said plainly, it is done


def test_a_few_lines_are_enough(tmp_path):
    with pytest.raises(InputError, match=r"say --separator ','"):
        read_labels(write(tmp_path, 'image,present\na,"cat,dog"\nb,cat\n'))
    with pytest.raises(InputError, match=r"say --separator ','"):
        read_labels(write(tmp_path, 'image,present,absent\na,"cat, dog",\nb,dog,"fox, cat"\n'))


def test_names_may_hold_other_separators(tmp_path):
    fish = write(tmp_path, 'image,present\na,"tench, Tinca tinca"\nb,goldfish\n')
    assert read_labels(fish).classes == ("goldfish", "tench, Tinca tinca")
    (note,) = notes(fish)
    assert note.endswith("if it separates names, say --separator ','")
    assert notes(fish, separator=";") == ()
    lights = write(tmp_path, "image,present\na,traffic light\nb,street light\nc,stop sign\nd,street sign\n")
    assert len(read_labels(lights).classes) == 4
    assert notes(lights) == ()


def test_a_list_in_a_list_is_noted(tmp_path):
    path = write(tmp_path, 'image,present\na,cat;dog\nb,"cat,dog"\nc,"tench, Tinca tinca"\n')
    assert notes(path) == ('read as one class, though its parts are classes too: "cat,dog"',)
    assert notes(path, separator=";") == ()


def test_lists_of_python_are_refused(tmp_path):
    for cell in ("\"['cat', 'dog']\"", '"[""cat""]"', "[]"):
        with pytest.raises(InputError, match=r"is a list in Python's notation; put ; between names"):
            read_labels(write(tmp_path, f"image,present\na,{cell}\nb,{cell}\n"))


def test_separators_are_for_lists_in_cells(tmp_path):
    text = 'image,label,value\na,"cat,dog",1\nb,cat,1\nc,dog,1\n'
    assert read_labels(write(tmp_path, text)).classes == ("cat", "cat,dog", "dog")
    lines = '{"image": "a", "present": ["cat,dog", "cat"]}\n'
    assert read_labels(write(tmp_path, lines, "x.jsonl"), separator=",").classes == ("cat", "cat,dog")
    with pytest.raises(InputError, match="cannot be empty"):
        read_labels(write(tmp_path, text), separator="")


def test_what_was_joined_is_told_from_what_has_spaces():
    assert joined(
        ["clear", "clear primary", "haze primary", "haze", "clear haze", "clear haze primary"]
    ).evident
    assert joined(["red car", "blue car", "red bus", "blue bus"]) is None
    assert joined(["cat", "dog"]) is None


# ---- missing values ----------------------------------------------------------------------------------------


def test_words_for_missing_values_are_refused(tmp_path):
    path = write(tmp_path, "image,present,absent\na,cat,nan\nb,dog,None\nc,,nan\nd,nan,\ne,cat;dog,N/A\n")
    with pytest.raises(
        InputError, match=r'"nan" \(3 times\), "None" \(1 times\), "N/A" \(1 times\)'
    ) as raised:
        read_labels(path)
    assert "say --missing nan,None,N/A where nothing is meant, or --missing '' if these" in str(raised.value)
    labels = read_labels(path, missing=["nan", "None", "N/A"])
    assert labels.classes == ("cat", "dog")
    np.testing.assert_array_equal(labels.dense(), [[1, 0], [0, 1], [0, 0], [0, 0], [1, 1]])
    assert read_labels(path, missing=[]).classes == ("N/A", "None", "cat", "dog", "nan")


def test_a_class_may_be_called_none(tmp_path):
    path = write(tmp_path, "image,label,value\na,none,1\nb,none,1\nc,cat,1\nc,none,-1\n")
    with pytest.raises(InputError, match="--missing none"):
        read_labels(path)
    assert read_labels(path, missing=[]).classes == ("cat", "none")
    assert read_labels(path, classes=["none", "cat"]).classes == ("none", "cat")  # declared
    labels = read_labels(path, missing=["none"])
    np.testing.assert_array_equal(labels.dense(), [[0], [0], [1]])


def test_a_single_word_is_noted(tmp_path):
    path = write(tmp_path, "image,present\na,cat\nb,nan\n")
    (note,) = notes(path)
    assert note.startswith(
        'words for missing values are read as names of classes: "nan" (1 times); say --missing nan'
    )
    assert notes(path, missing=()) == notes(path, missing=("nan",)) == ()
    two = write(tmp_path, "image,present,absent\na,cat,None\nb,nan,None\nc,nan,\n")
    (note,) = notes(two, missing=("nan",))  # what was not named is still looked for
    assert "--missing nan,None" in note


def test_json_lines_have_missing_words_too(tmp_path):
    text = '{"image": "a", "present": ["cat", "None"]}\n{"image": "b", "present": ["None"]}\n'
    path = write(tmp_path, text, "labels.jsonl")
    with pytest.raises(InputError, match="--missing None"):
        read_labels(path)
    assert read_labels(path, missing=["None"]).classes == ("cat",)


# ---- twins -------------------------------------------------------------------------------------------------


def test_names_that_look_the_same_are_one_class(tmp_path):
    decomposed = unicodedata.normalize("NFD", "café")
    spellings = [
        "café",
        decomposed,
        "traffic light",
        "traffic  light",
        "traffic\u00a0light",
        "\ufefftraffic light",
    ]
    lines = "".join(f"{place}.jpg,{name}\n" for place, name in enumerate(spellings))
    path = write(tmp_path, f"image,present\n{lines}")
    labels = read_labels(path)
    assert labels.classes == ("café", "traffic light")
    assert labels.class_counts[0].tolist() == [2, 4]
    (note,) = notes(path)
    assert note == "spelt in several ways that look the same, and read as one class: café, traffic light"
    assert read_labels(
        path, classes=[*read_classes(write(tmp_path, f"{decomposed}\ntraffic light\n", "c.txt"))]
    )
    both = write(tmp_path, f"image,present,absent\na,café,{decomposed}\n")
    with pytest.raises(InputError, match='listed both with and without "café"'):
        read_labels(both)


def test_files_of_our_own_have_tidy_names_too(tmp_path):
    decomposed = unicodedata.normalize("NFD", "café")
    labels = Labels.from_dense(
        [[1, 0, -1], [0, 1, 0]], classes=["café", decomposed, "cat"], images=["a", "b"]
    )
    for name in ("labels.arrow", "labels.parquet"):
        write_labels(labels, tmp_path / name)
        found = read_labels(tmp_path / name)
        assert found.classes == ("café", "cat")
        np.testing.assert_array_equal(found.dense(), [[1, -1], [1, 0]])
        assert len(notes(tmp_path / name)) == 1


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["Cat", "cat"], [("Cat", "cat")]),
        (
            ["traffic_light", "Traffic light", "traffic-light"],
            [("traffic_light", "Traffic light", "traffic-light")],
        ),
        (
            ["dog", "dogs", "box", "boxes", "fly", "flies"],
            [("dog", "dogs"), ("box", "boxes"), ("fly", "flies")],
        ),
        (["cat", "car", "bear", "pear", "boat", "coat"], []),  # short names differ by a letter
        (["class 1", "class 2", "class 11", "type a", "type b"], []),
        (["bicycle", "bycicle"], []),  # two letters
    ],
)
def test_look_alikes(names, groups):
    assert look_alike(names, lambda: dict.fromkeys(names, 10)) == groups


@pytest.mark.parametrize("slip", ["bicyle", "bicyclee", "bicucle", "bicylce"])
def test_a_rare_spelling_is_a_slip(slip):
    assert look_alike([slip, "bicycle"], lambda: {slip: 2, "bicycle": 90}) == [("bicycle", slip)]
    assert look_alike([slip, "bicycle"], lambda: {slip: 40, "bicycle": 90}) == []


def test_look_alikes_are_noted_and_settled_by_renaming(tmp_path):
    path = write(tmp_path, "image,present,absent\na,Cat,dog\nb,cat,\nc,,cat\nd,,Cat\n")
    (note,) = notes(path)
    assert note.startswith("classes with nearly the same name: Cat / cat; make them one with --rename FILE")
    names = write(tmp_path, "from,to\nCat,cat\n", "names.csv")
    for new in ({"Cat": "cat"}, names, str(names)):
        labels = read_labels(path, rename=new)
        assert labels.classes == ("cat", "dog")
        # As if it stood in the file: an absent Cat is an absent cat.
        np.testing.assert_array_equal(labels.dense(), [[1, -1], [1, 0], [-1, 0], [-1, 0]])
    assert notes(path, rename=names) == ()
    (note,) = notes(path, rename={"Cta": "cat", "Cat": "cat"})
    assert "does not have: Cta; did you mean" in note


def test_new_names_are_suggested(tmp_path):
    names = ["Cat", "cat", "cats", "dog", "bicycle", "bicyle"]
    rows = [["cat"]] * 3 + [["Cat", "bicyle"], ["cats"], ["dog"]] + [["bicycle"]] * 10
    matrix = [[int(name in row) for name in names] for row in rows]
    labels = Labels.from_dense(matrix, classes=names)
    groups = twins(labels)
    assert groups == [("cat", "Cat", "cats"), ("bicycle", "bicyle")]
    write_renaming(groups, tmp_path / "names.csv")
    write_labels(labels, tmp_path / "labels.csv")
    found = read_labels(tmp_path / "labels.csv", rename=tmp_path / "names.csv")
    assert found.classes == ("bicycle", "cat", "dog")
    assert found.class_counts[0].tolist() == [11, 5, 1]
    assert notes(tmp_path / "labels.csv", rename=tmp_path / "names.csv") == ()


def test_renaming_holds_for_files_of_our_own_and_contradictions_are_found(tmp_path):
    labels = Labels.from_dense([[1, 0], [1, -1]], classes=["Cat", "cat"], images=["a", "b"])
    write_labels(labels, tmp_path / "labels.arrow")
    with pytest.raises(InputError, match=r'labels.arrow: image "b" is listed both with and without "cat"'):
        read_labels(tmp_path / "labels.arrow", rename={"Cat": "cat"})
    found = read_labels(tmp_path / "labels.arrow", rename={"Cat": "cat"}, contradictions="absent")
    np.testing.assert_array_equal(found.dense(), [[1], [-1]])


def test_values_are_no_names(tmp_path):
    (note,) = notes(write(tmp_path, "image,present\na,1\nb,0\n"))
    assert note == "the classes are called 0 and 1; the file should list names of classes, not values"


def test_declared_classes_are_meant_as_they_are(tmp_path):
    path = write(tmp_path, "image,present\na,Cat\nb,cat\n")
    assert LabelFile(path).read(classes=["Cat", "cat"]).notes == ()


@given(st.text())
def test_tidying_twice_changes_nothing_more(name):
    assert tidy(tidy(name)) == tidy(name)


# ---- columns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("image;present;absent\na;cat;dog\n", "labels.csv", "separated by semicolons; save it with commas"),
        ("image\tpresent\na\tcat\n", "labels.csv", "separated by tabs; save it with commas"),
        ("image,present\na,cat\n", "labels.tsv", "separated by commas; save it with tabs"),
    ],
)
def test_other_delimiters_are_named(tmp_path, text, name, message):
    with pytest.raises(InputError, match=message):
        read_labels(write(tmp_path, text, name))


def test_lists_with_spaces_are_told_from_names_with_spaces():
    letters = ["ant", "bee", "cat", "dog", "eel", "fox"]
    lists = [" ".join(letters[first : first + size]) for size in (2, 3, 4, 5) for first in range(7 - size)]
    assert joined(lists) == (" ", lists, 6, True)
    products = [f"{colour} {shape}" for colour in letters for shape in ("circle", "square")]
    assert joined(products) is None or not joined(products).evident
    assert joined(["traffic light", "stop sign", "fire hydrant", "parking meter"]) is None
