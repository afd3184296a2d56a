"""The model as one vector."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbow import Constant, DataError, DataflowNode, Gaussian, Uniform
from crossbow.compile.model import SEGMENT_ALIGNMENT, ModelLayout, Segment, check_names, lay_out
from crossbow.kernels.interface import PlainStorage, Storage
from crossbow.ops import Initialiser, SoftMax, SoftMaxLoss, VariableSpec
from crossbow.types import Array, Shape, address
from tests.compile.execution import compile_network
from tests.dataflow.networks import branched, chain, inner_product, node


@dataclass(frozen=True)
class Reversed:
    """A storage that no kernel has: backwards, with padding before it."""

    shape: Shape

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape)) + 5

    def pack(self, plain: Array, flat: Array) -> None:
        flat[:5] = 0
        flat[5:] = plain.ravel()[::-1]

    def unpack(self, flat: Array, plain: Array) -> None:
        plain[...] = flat[5:][::-1].reshape(self.shape)


def layout(
    *shapes: Shape, dtype: type = np.float32, initialiser: Initialiser | None = None, reverse: bool = False
) -> ModelLayout:
    """Variables a.weights, b.weights, … of these shapes, one behind the other, as the compiler places them."""
    variables: dict[tuple[int, str], tuple[str, VariableSpec, Storage]] = {}
    for number, shape in enumerate(shapes):
        storage: Storage = Reversed(shape) if reverse else PlainStorage(shape)
        spec = VariableSpec("weights", shape, initialiser or Gaussian(std=1.0))
        variables[number, "weights"] = f"{'abcdef'[number]}.weights", spec, storage
    return lay_out(variables, np.dtype(dtype))


def test_variables_are_stored_plain_where_it_is_asked_for() -> None:
    given = layout((3, 2), (40,), (4,), reverse=True)
    plain = given.plain({"b.weights"})
    assert [str(type(each.storage).__name__) for each in plain] == ["Reversed", "PlainStorage", "Reversed"]
    assert [each.offset for each in plain] == [0, 16, 64]
    vector = given.new_vector()
    given.initialise(vector, seed=1)
    other = plain.new_vector()
    plain.pack(given.unpack(vector), other)
    np.testing.assert_equal(plain.export(other), given.export(vector))


def test_the_compiler_places_every_variable_on_a_cache_line() -> None:
    model = compile_network(branched(), (2, 2, 6, 6), dtype=np.float32).model
    names = [f"{name}.{kind}" for name in ("conv1", "conv2", "conv3", "ip") for kind in ("weights", "bias")]
    segments = list(model)
    assert [segment.name for segment in segments] == names
    assert all(segment.offset % SEGMENT_ALIGNMENT == 0 for segment in segments)
    for before, after in itertools.pairwise(segments):
        assert before.offset + before.storage.elements <= after.offset < before.offset + before.storage.elements + 16
    assert model.elements % SEGMENT_ALIGNMENT == 0
    assert model.parameters == 3 * 2 * 9 + 3 + 3 * 3 * 9 + 3 + 9 + 3 + 3 * 108 + 3
    assert segments[0].offset == 0
    assert segments[1].offset == 64  # 54 weights, rounded up to 16 elements
    vector = model.new_vector()
    assert (vector.size, vector.dtype) == (model.elements, np.float32)
    assert address(vector) % 64 == 0
    assert not vector.any()


@pytest.mark.parametrize("elements", [16, 1000, 1024, 1024 + 127, 1024 + 128, 2048])
def test_vectors_begin_on_cache_lines_that_do_not_compete(elements: int) -> None:
    vectors = layout((elements,)).new_vectors(3)
    places = [address(vector) for vector in vectors]
    assert all(place % 64 == 0 for place in places)
    for before, after in itertools.pairwise(places):
        assert after - before >= vectors[0].nbytes
        assert (after - before) % 4096 >= 512


def test_a_shared_operator_has_its_variables_once() -> None:
    ip = inner_product(outputs=5)
    program = compile_network(chain(ip, ip.shallow_copy(), *classifier()), (4, 5))
    assert [segment.name for segment in program.model] == ["ip.weights", "ip.bias"]


def classifier() -> tuple[DataflowNode, DataflowNode]:
    return node("softmax", SoftMax()), node("loss", SoftMaxLoss())


def test_operators_of_one_name_have_variables_of_their_own() -> None:
    program = compile_network(chain(inner_product("ip", 5), inner_product("ip", 5), *classifier()), (4, 5))
    assert [segment.name for segment in program.model] == ["ip.weights", "ip.bias", "ip#2.weights", "ip#2.bias"]


@given(
    st.lists(st.lists(st.integers(1, 5), max_size=4).map(tuple), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_what_is_loaded_is_exported(shapes: list[Shape], reverse: bool, dtype: type) -> None:
    model = layout(*shapes, dtype=dtype, reverse=reverse)
    generator = np.random.default_rng(0)
    variables = {segment.name: generator.standard_normal(segment.spec.shape).astype(dtype) for segment in model}
    vector = model.new_vector()
    model.load(variables, vector, "a test")
    exported = model.export(vector)
    assert exported.keys() == variables.keys()
    for name, value in variables.items():
        np.testing.assert_array_equal(exported[name], value)
        assert exported[name].dtype == dtype
    used = np.zeros(model.elements, bool)
    for segment in model:
        used[segment.offset : segment.offset + segment.storage.elements] = True
    assert not vector[~used].any()  # nothing between the variables


def test_a_variable_may_have_its_minimum_and_nothing_less() -> None:
    spec = VariableSpec("weights", (3,), Constant(0.5), minimum=0.5)
    model = ModelLayout({(0, "weights"): Segment("a.weights", spec, PlainStorage((3,)), 0)}, np.dtype(np.float64))
    vector = model.new_vector()
    model.initialise(vector, 0)
    model.load({"a.weights": np.array([0.5, 0.75, 1])}, vector, "a test")
    with pytest.raises(DataError, match=r"a\.weights: expected numbers ≥ 0\.5 .*\. Received: 0\.499"):
        model.load({"a.weights": np.array([0.5, 0.499, 1])}, vector, "a test")
    np.testing.assert_array_equal(vector[:3], [0.5, 0.75, 1])


def test_an_export_is_a_copy() -> None:
    model = layout((2, 3))
    vector = model.new_vector()
    exported = model.export(vector)
    exported["a.weights"][...] = 7
    assert not vector.any()


def test_a_plain_variable_is_seen_in_its_shape_and_another_as_it_is_stored() -> None:
    plain, reverse = layout((2, 3)), layout((2, 3), reverse=True)
    vector = plain.new_vector()
    view = next(iter(plain)).view(vector)
    assert view.shape == (2, 3)
    assert np.shares_memory(view, vector)
    assert next(iter(reverse)).view(reverse.new_vector()).shape == (11,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a.weights": np.zeros((3, 2))}, r"a\.weights: expected \(2, 3\)\. Received: \(3, 2\)"),
        ({"b.weights": None}, r"b\.weights: expected \(4,\)\. Received: nothing"),
        ({"x.bias": np.zeros(2)}, r"x\.bias: expected no such variable\. Received: \(2,\)"),
        (
            {"b.weights": np.zeros(5), "x": np.zeros(())},
            r"b\.weights: expected \(4,\)\. Received: \(5,\); x: expected no such variable\. Received: \(\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Array | None], message: str) -> None:
    model = layout((2, 3), (4,))
    vector = model.new_vector()
    vector[...] = np.arange(vector.size)
    variables: dict[str, Array | None] = {"a.weights": np.zeros((2, 3)), "b.weights": np.zeros(4), **change}
    given = {name: value for name, value in variables.items() if value is not None}
    with pytest.raises(DataError, match=f"model.safetensors does not fit the model: {message}"):
        model.load(given, vector, "model.safetensors")
    np.testing.assert_array_equal(vector, np.arange(vector.size))


def test_initial_values_depend_on_the_seed_and_the_variables_number_alone() -> None:
    one = layout((2, 3), (4,), (5, 2))
    other = layout((7, 7), (4,), (5, 2), (9,))  # another first variable, and one more
    vectors = []
    for model, seed in ((one, 3), (one, 3), (other, 3), (one, 4)):
        vector = model.new_vector()
        model.initialise(vector, seed)
        vectors.append(model.export(vector))
    for name in one.export(one.new_vector()):
        np.testing.assert_array_equal(vectors[0][name], vectors[1][name])
        assert not np.array_equal(vectors[0][name], vectors[3][name])
    for name in ("b.weights", "c.weights"):
        np.testing.assert_array_equal(vectors[0][name], vectors[2][name])


def test_variables_of_one_shape_begin_with_different_values() -> None:
    model = layout((40,), (40,))
    vector = model.new_vector()
    model.initialise(vector, 0)
    first, second = model.export(vector).values()
    assert not np.intersect1d(first, second).size


def test_initial_values_do_not_depend_on_how_they_are_stored() -> None:
    plain, reverse = layout((3, 4), (5,)), layout((3, 4), (5,), reverse=True)
    exported = []
    for model in (plain, reverse):
        vector = model.new_vector()
        model.initialise(vector, 11)
        exported.append(model.export(vector))
    for name in exported[0]:
        np.testing.assert_array_equal(exported[0][name], exported[1][name])


def test_float64_begins_where_float32_does() -> None:
    vectors = []
    for dtype in (np.float32, np.float64):
        model = layout((3, 4), dtype=dtype)
        vector = model.new_vector()
        model.initialise(vector, 5)
        vectors.append(model.export(vector)["a.weights"])
    np.testing.assert_array_equal(vectors[0], vectors[1].astype(np.float32))


def test_initialisers_are_obeyed() -> None:
    model = layout((100,), initialiser=Uniform(minimum=2, maximum=3))
    vector = model.new_vector()
    model.initialise(vector, 0)
    values = model.export(vector)["a.weights"]
    assert (values >= 2).all()
    assert (values <= 3).all()
    model = layout((2, 2), initialiser=Constant(0.25))
    vector = model.new_vector()
    model.initialise(vector, 0)
    assert vector[:4].tolist() == [0.25] * 4
    assert not vector[4:].any()  # padding stays zero: it takes part in every linear combination


# Learning rates.


def test_ranges_with_one_learning_rate() -> None:
    """Neighbours with the same multiplier are one range, and the padding behind a variable belongs to it."""
    model = layout((3, 4), (20,), (5,), (1,))  # at 0, 16, 48, 64, and 80 in all
    assert model.learning_rates == ((slice(0, 80), 1.0),)
    for multipliers, expected in (
        ((2.0, 2.0, 2.0, 2.0), ((slice(0, 80), 2.0),)),
        ((1.0, 2.0, 2.0, 1.0), ((slice(0, 16), 1.0), (slice(16, 64), 2.0), (slice(64, 80), 1.0))),
        ((0.0, 0.0, 1.0, 0.5), ((slice(0, 48), 0.0), (slice(48, 64), 1.0), (slice(64, 80), 0.5))),
    ):
        segments = {
            key: dataclasses.replace(
                segment, spec=dataclasses.replace(segment.spec, learning_rate_multiplier=multiplier)
            )
            for (key, segment), multiplier in zip(model.segments.items(), multipliers, strict=True)
        }
        assert ModelLayout(segments, model.dtype).learning_rates == expected
    assert layout().learning_rates == ()


def test_many_differences_are_counted() -> None:
    with pytest.raises(DataError, match=r"^here does not fit the model: n00: .*; n19: .*; and 5 more$"):
        check_names({f"n{number:02}": (1,) for number in range(25)}, [], "here")
