import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.sparse import csr_matrix

from tertium.errors import InputError
from tertium.labels.labels import ContradictionError, Labels

MATRICES = arrays(
    np.int8, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.sampled_from([-1, 0, 1])
)


def random_labels(rng: np.random.Generator, images: int, classes: int, known: float = 0.3) -> Labels:
    values = rng.choice([-1, 1], size=(images, classes)) * (rng.random((images, classes)) < known)
    return Labels.from_dense(values)


@given(MATRICES)
def test_dense_round_trip(matrix):
    labels = Labels.from_dense(matrix)
    np.testing.assert_array_equal(labels.dense(), matrix)
    assert labels == Labels.from_scipy(csr_matrix(matrix))
    np.testing.assert_array_equal(labels.to_scipy().toarray(), matrix)
    assert labels.known == np.count_nonzero(matrix)
    assert labels.is_full == (matrix != 0).all()


@given(MATRICES, st.data())
def test_rows_are_chosen_as_numpy_chooses_them(matrix, data):
    rows = data.draw(st.lists(st.integers(0, len(matrix) - 1), unique=True))
    labels = Labels.from_dense(matrix)
    np.testing.assert_array_equal(labels.dense(rows), matrix[rows])
    np.testing.assert_array_equal(labels[np.array(rows, dtype=int)].dense(), matrix[rows])
    np.testing.assert_array_equal(labels[1:].dense(), matrix[1:])
    mask = matrix[:, 0] > 0
    np.testing.assert_array_equal(labels[mask].dense(), matrix[mask])
    np.testing.assert_array_equal(labels.dense(mask), matrix[mask])
    np.testing.assert_array_equal(labels.dense(mask.tolist()), matrix[mask])
    assert labels[mask].images.to_pylist() == [str(row) for row in np.flatnonzero(mask)]


@given(MATRICES)
def test_counts(matrix):
    labels = Labels.from_dense(matrix)
    for counts, axis in ((labels.class_counts, 0), (labels.image_counts, 1)):
        np.testing.assert_array_equal(counts[0], (matrix > 0).sum(axis=axis))
        np.testing.assert_array_equal(counts[1], (matrix < 0).sum(axis=axis))


@given(MATRICES)
def test_unlisted_absent(matrix):
    expected = np.where(matrix == 0, -1, matrix)
    np.testing.assert_array_equal(Labels.from_dense(matrix).unlisted_absent().dense(), expected)


@given(MATRICES, st.data())
def test_with_rows(matrix, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(matrix) - 1), unique=True)), dtype=int)
    new = -matrix[rows]
    expected = matrix.copy()
    expected[rows] = new
    replaced = Labels.from_dense(matrix).with_rows(rows, Labels.from_dense(new))
    np.testing.assert_array_equal(replaced.dense(), expected)


def test_with_classes_reorders_drops_and_adds():
    labels = Labels.from_dense([[1, -1, 0], [0, 1, 1]], classes=["a", "b", "c"])
    moved = labels.with_classes(["c", "new", "a"])
    np.testing.assert_array_equal(moved.dense(), [[0, 0, 1], [1, 0, 0]])
    assert labels.with_classes(["a", "b", "c"]) is labels


def test_many_classes_need_wider_entries():
    classes = [str(number) for number in range(40_000)]
    labels = Labels.from_entries([0, 0], [39_999, 32_767], [1, -1], classes=classes, images=["x"])
    dense = labels.dense()
    assert dense[0, 39_999] == 1
    assert dense[0, 32_767] == -1
    assert labels.known == 2


def test_entries_given_twice_count_once_and_contradictions_are_named():
    once = Labels.from_entries([0, 0], [1, 1], [1, 1], classes=["a", "b"], images=["x"])
    assert once.known == 1
    with pytest.raises(ContradictionError, match='"x" is listed both with and without "b"'):
        Labels.from_entries([0, 0], [1, 1], [1, -1], classes=["a", "b"], images=["x"])


def entries(rows, columns, values, rule="error", splits=None):
    two = {"classes": ["cat", "dog"], "images": ["a", "b"], "splits": splits}
    return Labels.merged(rows, columns, values, **two, contradictions=rule)[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Labels.from_dense([[2]]), "not 2"),
        (lambda: Labels.from_dense([1, 0]), "matrix"),
        (lambda: Labels.from_dense([[0.5]]), "not 0.5"),
        (lambda: Labels.from_dense([[1, 1]], classes=["a", "a"]), "named twice: a"),
        (lambda: Labels.from_dense([[1, 1]], classes=["a"]), "1 class names were given for 2 columns"),
        (lambda: Labels.from_dense([[1], [1]], images=["i", "i"]), "two rows: i"),
        (lambda: Labels.from_dense(np.zeros((1, 0))), "no classes"),
        (lambda: Labels.from_dense([[1]], classes=["cat"]).column("cut"), 'did you mean "cat"'),
        (lambda: Labels.from_dense([[1]]).part("train"), "no split column"),
        (lambda: Labels.from_dense([[1]], images=["a"]).rows_of(["b"]), "no labels for 1 images: b"),
        (lambda: entries([0], [2], [1]), "there is no column 2 of 2 classes, counted from 0"),
        (lambda: entries([0], [-1], [1]), "there is no column -1 of 2 classes"),
        (lambda: entries([2], [0], [1]), "there is no row 2 of 2 images, counted from 0"),
        (lambda: entries([-1], [0], [1]), "there is no row -1 of 2 images"),
        (lambda: entries([0.5], [0], [1]), "a row is a whole number, not 0.5"),
        (lambda: entries([0], [0], [0]), r"a known label is \+1 \(present\) or −1 \(absent\), not 0"),
        (lambda: entries([0, 1], [0, 1], [1, float("nan")]), "not nan"),
        (lambda: entries([0, 1], [0], [1, 1]), "2 rows, 1 columns and 2 values were given"),
        (lambda: entries([0], [0], [1], splits=pa.array(["train"]).dictionary_encode()), "1 splits .* 2 im"),
        (lambda: Labels.from_dense([[1], [0]], images=["a", "b", "c"]), "3 image ids were given for 2 rows"),
        (lambda: Labels.from_dense([[1], [0]], images=["a"]), "1 image ids were given for 2 rows"),
        (lambda: Labels.from_scipy(csr_matrix([[1], [0]]), images=["a"]), "1 image ids were given for 2"),
        (lambda: Labels.from_dense([[True, False]]), "not True and False; where False means absent, give"),
        (lambda: Labels.from_dense([[1]], images="a"), 'images are a list of ids, not the text "a"'),
        (lambda: Labels.from_dense([[1]], images=[1.5]), "an image id is text, not 1.5"),
        (lambda: Labels.from_dense([[1], [0]], images=["a", None]), "row 1 has no image id"),
        (lambda: Labels.from_dense([[1]], classes=[None]), "the name of a class is text, not None"),
        (lambda: Labels.from_dense([[1]], classes="a"), 'classes are a list of names, not the text "a"'),
        (lambda: Labels.from_dense([[1]]).with_classes("a"), "classes are a list of names"),
        (
            lambda: entries([0, 0], [0, 0], [1, -1], rule="abscent"),
            'contradictions cannot be "abscent"; did you mean "absent"?',
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("ids", [[7, 12], np.array([7, 12]), pa.array([7, 12]), map(str, (7, 12))])
def test_numbers_become_text_as_in_files(ids):
    labels = Labels.from_dense([[1, 0], [0, 1]], classes=[7, np.int64(8)], images=ids)
    assert labels.images.equals(pa.array(["7", "12"]))
    assert labels.classes == ("7", "8")


def test_save_and_load_are_mapped_and_equal(tmp_path, rng):
    labels = random_labels(rng, 50, 7)
    splits = pa.array(["train"] * 30 + ["test"] * 20).dictionary_encode()
    labels = Labels(labels.offsets, labels.entries, labels.classes, labels.images, splits)
    labels.save(tmp_path / "labels.arrow")
    loaded = Labels.load(tmp_path / "labels.arrow")
    assert loaded == labels
    assert loaded.part("test") == labels[30:]
    assert not loaded.entries.flags.owndata  # a view of the file, not a copy


def test_equality_sees_every_part(rng):
    labels = random_labels(rng, 5, 4)
    assert labels != labels[:4]
    assert labels != labels[::-1]
    assert labels != labels.with_classes(["3", "2", "1", "0"])
    flipped = Labels(labels.offsets, -labels.entries, labels.classes, labels.images)
    assert labels != flipped
    assert labels != "labels"


def test_equality_sees_the_split_of_each_image():
    plain = Labels.from_dense([[1], [1]])

    def with_splits(*names):
        splits = pa.array(names, pa.string()).dictionary_encode()
        return Labels(plain.offsets, plain.entries, plain.classes, plain.images, splits)

    assert with_splits("train", "test") != with_splits("test", "train")
    assert with_splits("train", "test") != with_splits("train", None)
    assert with_splits("train", "test") != plain
    assert with_splits(None, None) == plain  # none is in a split
    ordered = pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(["test", "train"]))
    other = Labels(plain.offsets, plain.entries, plain.classes, plain.images, ordered)
    assert with_splits("train", "test") == other  # the order of the dictionary does not matter


@pytest.mark.parametrize("damage", ["truncate", "flip", "text"])
def test_a_damaged_file_is_named(tmp_path, rng, damage):
    path = tmp_path / "labels.arrow"
    random_labels(rng, 200, 7).save(path)
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "text":
        content = bytearray(b"image,present\n")
    else:
        content[-6:] = b"\0" * 6
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"labels\.arrow"):
        Labels.load(path)


def test_memory_at_open_images_shape(rng):
    """Per image and entry, scaled up: 9M images × 7 known labels with 16-character ids stay below 0.35 GB."""
    images, known = 20_000, 7
    columns = np.argsort(rng.random((images, 40)), axis=1)[:, :known]
    ids = [f"{number:016x}" for number in range(images)]
    classes = [str(number) for number in range(9600)]
    rows = np.repeat(np.arange(images), known)
    labels = Labels.from_entries(rows, columns.ravel(), np.ones(len(rows)), classes=classes, images=ids)
    assert labels.known == images * known
    assert labels.nbytes * (9_000_000 / images) < 0.35e9
