"""What is written comes back bit by bit or not at all; a file that is not ours, incomplete or too new says so."""

import json
import math
import os
import pickle
import signal
import struct
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import safetensors
import safetensors.numpy

import prodssm as ps
from prodssm._storage import FORMAT_VERSION, FileError, flatten, read, restore, write

RNG = np.random.default_rng(0)
CONFIG = {"hidden": [50, 50], "activation": "relu", "noise": 0.1, "name": None, "nested": {"on": True, "text": 'ü "quoted" \n'}}
ARRAYS = {
    "float64": RNG.normal(size=(3, 2)),
    "float32": RNG.normal(size=(2, 3, 1)).astype(np.float32),
    "int64": np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max]),
    "int32": np.arange(4, dtype=np.int32),
    "uint32": np.array([0, 2**32 - 1], dtype=np.uint32),
    "bool": np.array([True, False]),
    "no axes": np.array(math.pi),
    "an integer without axes": np.array(7, dtype=np.int32),
    "no entries": np.zeros((0, 3)),
    "strange values": np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324]),
    "Fortran order": np.asfortranarray(RNG.normal(size=(3, 4))),
    "every other": np.arange(10.0)[::2],
    "backwards": np.arange(3.0)[::-1],
    "turned": np.arange(6.0).reshape(2, 3).T,
}


def same(a, b):
    """Whether two arrays agree in type, shape and every bit."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_trees(a, b):
    names = flatten(a).keys()
    return names == flatten(b).keys() and all(same(flatten(a)[name], flatten(b)[name]) for name in names)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


# ---------------------------------------------------------------- there and back


def test_what_is_written_is_read_bit_by_bit(path):
    write(path, "ProDSSM", CONFIG, ARRAYS)
    stored = read(path)
    assert (stored.kind, stored.config, stored.library_version) == ("ProDSSM", CONFIG, ps.__version__)
    assert stored.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert type(stored.arrays[name]) is np.ndarray
        assert same(stored.arrays[name], array), name


def test_paths_may_be_text_and_names_may_be_long(tmp_path):
    path = str(tmp_path / ("é" * 100 + ".safetensors"))
    write(path, "note", {}, {})
    assert read(path).arrays == {}


def test_numbers_in_foreign_byte_order_keep_their_values(path):
    write(path, "note", {}, {"big": np.arange(3, dtype=">f8"), "little": np.arange(3, dtype="<i4")})
    assert same(read(path).arrays["big"], np.arange(3.0))
    assert same(read(path).arrays["little"], np.arange(3, dtype=np.int32))


def test_jax_arrays_and_numbers_are_arrays(path):
    write(path, "note", {}, {"jax": jnp.arange(3.0), "number": 1.5, "list": [1, 2]})
    arrays = read(path).arrays
    assert same(arrays["jax"], np.asarray(jnp.arange(3.0)))
    assert same(arrays["number"], np.array(1.5))
    assert arrays["list"].tolist() == [1, 2]


def test_arrays_that_were_read_are_independent_of_the_file(path):
    write(path, "note", {}, {"a": np.zeros(3)})
    stored = read(path)
    stored.arrays["a"][0] = 1.0
    write(path, "note", {}, {"a": np.full(3, 2.0)})
    assert stored.arrays["a"].tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(AttributeError):
        stored.kind = "another"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_header_describes_the_file_to_any_reader_of_safetensors(path):
    write(path, "checkpoint", CONFIG, {})
    with safetensors.safe_open(path, framework="np") as file:
        header = file.metadata()
    assert header.keys() == {"format", "format_version", "library_version", "kind", "config"}
    assert header["format"] == "prodssm"
    assert int(header["format_version"]) == FORMAT_VERSION == 2
    assert json.loads(header["config"]) == CONFIG


# ---------------------------------------------------------------- writing is all or nothing


def test_overwriting_must_be_allowed(path):
    write(path, "note", {"n": 1}, {})
    with pytest.raises(FileExistsError, match=r"model\.safetensors is already there; .* overwrite=True"):
        write(path, "note", {"n": 2}, {}, overwrite=False)
    assert read(path).config == {"n": 1}
    write(path, "note", {"n": 2}, {})
    assert read(path).config == {"n": 2}
    write(path.with_name("new.safetensors"), "note", {}, {}, overwrite=False)


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path, monkeypatch, fails):
    def broken(*_):
        raise OSError("disk full")

    write(path, "note", {"n": 1}, {})
    monkeypatch.setattr(os, fails, broken)
    with pytest.raises(OSError, match="disk full"):
        write(path, "note", {"n": 2}, {})
    assert read(path).config == {"n": 1}
    assert list(path.parent.iterdir()) == [path]


# The kernel ends the process, with no chance to tidy up, when a file grows past the limit: half way through the second one.
KILLED = """
import resource, signal, sys
import numpy as np
from prodssm._storage import write
write(sys.argv[1], "checkpoint", {"n": 1}, {"a": np.full(100_000, 1.0)})
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
write(sys.argv[1], "checkpoint", {"n": 2}, {"a": np.full(100_000, 2.0)})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_killed_process_never_leaves_half_a_file(path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGXFSZ, done.stderr
    stored = read(path)
    assert stored.config == {"n": 1}
    assert (stored.arrays["a"] == 1.0).all()
    half = [file for file in path.parent.iterdir() if file != path]
    assert [file.stat().st_size for file in half] == [400_000]
    write(path, "checkpoint", {"n": 3}, {})
    assert read(path).config == {"n": 3}


def test_a_link_is_followed_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "latest.safetensors"
    link.symlink_to(tmp_path / "folder" / "model.safetensors")
    write(link, "note", {}, {})
    assert link.is_symlink()
    assert read(link).kind == read(tmp_path / "folder" / "model.safetensors").kind == "note"


def test_permissions_are_those_of_any_new_file(path):
    write(path, "note", {}, {})
    plain = path.with_name("plain")
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_missing_folder_or_a_folder_as_path_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder .*nowhere does not exist; create it first"):
        write(tmp_path / "nowhere" / "a.safetensors", "note", {}, {})
    with pytest.raises(IsADirectoryError, match="path must be a file"):
        write(tmp_path, "note", {}, {})


# ---------------------------------------------------------------- what cannot be written


@pytest.mark.parametrize(
    "config",
    [
        {"f": len},
        {"a": np.zeros(2)},
        {"n": np.int64(3)},
        {"x": math.nan},
        {"x": -math.inf},
        {1: "a"},
        {"deep": [{"er": {2: "b"}}]},
        {"s": {1, 2}},
    ],
    ids=repr,
)
def test_a_config_that_json_cannot_keep_is_refused(path, config):
    with pytest.raises(TypeError, match="config"):
        write(path, "note", config, {})
    assert not path.exists()


def test_a_config_that_holds_itself_is_refused(path):
    config: dict[str, object] = {}
    config["self"] = config
    with pytest.raises(TypeError, match="config"):
        write(path, "note", config, {})


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.array([1j]), np.array(["2020"], dtype="M8[D]")])
def test_arrays_of_anything_but_numbers_are_refused(path, array):
    with pytest.raises(TypeError, match=r"arrays\['a'\] must be real numbers or booleans"):
        write(path, "note", {}, {"a": array})
    assert not path.exists()


@pytest.mark.parametrize("name", ["", "__metadata__"])
def test_names_that_the_format_keeps_for_itself_are_refused(path, name):
    with pytest.raises(ValueError, match="arrays must have words as names"):
        write(path, "note", {}, {name: np.zeros(2)})


def test_an_empty_kind_is_refused(path):
    with pytest.raises(TypeError, match="kind must be a word"):
        write(path, "", {}, {})


# ---------------------------------------------------------------- files that are not ours or incomplete


def raw(header, data=b""):
    """A file with this header, right or wrong."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def ours(**changes):
    """A good header with changes; None takes an entry away."""
    header = {
        "format": "prodssm",
        "format_version": str(FORMAT_VERSION),
        "library_version": "0.1.0",
        "kind": "note",
        "config": "{}",
    }
    return {"__metadata__": {key: value for key, value in (header | changes).items() if value is not None}}


def numbers(dtype="F64", shape=(2,), end=16):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [0, end]}


def test_the_header_in_these_tests_is_a_good_one(path):
    path.write_bytes(raw(ours() | {"a": numbers()}, np.arange(2.0).tobytes()))
    assert same(read(path).arrays["a"], np.arange(2.0))
    assert read(path).format_version == FORMAT_VERSION


def test_a_file_of_an_older_format_says_which(path):
    path.write_bytes(raw(ours(format_version="1")))
    assert read(path).format_version == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"a", "is not a safetensors file; give the path of a file that prodssm has saved"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not a safetensors file"),
        (bytes(1000), "is not a safetensors file"),
        (b"time,value\n0,1\n1,2\n", "is not a safetensors file"),
        (b"\xff" * 8 + b"{" + bytes(30), "is damaged or was cut short; take another copy, or save again"),
        (raw({}), "was not written by prodssm; load it with the library that wrote it"),
        (safetensors.numpy.save({"a": np.zeros(2)}, metadata={"format": "pt"}), "was not written by prodssm"),
        (raw(ours(format="someone")), "was not written by prodssm"),
        (raw(ours(format_version="3", library_version="9.0")), r"newer prodssm \(9.0, file format 3; .* 2\); upgrade prodssm"),
        (raw(ours(format_version="3", config=None, kind=None)), "newer prodssm"),
        (raw(ours(format_version=None)), "damaged header.*format_version"),
        (raw(ours(format_version="new")), "damaged header.*format_version"),
        (raw(ours(format_version="0")), "damaged header.*format_version"),
        (raw(ours(format_version="9" * 5000)), "damaged header.*format_version"),
        (raw(ours(kind=None)), "damaged header.*without kind"),
        (raw(ours(config=None, library_version=None)), "damaged header.*without library_version, config"),
        (raw(ours(config='{"a": ')), "damaged header.*config is not JSON"),
        (raw(ours(config="[" * 100_000)), "damaged header.*config is not JSON"),
        (raw(ours(config="[1, 2]")), "damaged header.*config is not a dictionary"),
        (raw({"__metadata__": {"format": 1}}), "is damaged or was cut short"),
        (raw(ours() | {"a": numbers()}), "is damaged or was cut short"),
        (raw(ours() | {"a": numbers()}, bytes(8)), "is damaged or was cut short"),
        (raw(ours() | {"a": numbers()}, bytes(24)), "is damaged or was cut short"),
        (raw(ours() | {"a": numbers(shape=(3,))}, bytes(16)), "is damaged or was cut short"),
        (raw(ours() | {"a": numbers(), "b": numbers()}, bytes(16)), "is damaged or was cut short"),
        (raw(ours() | {"a": numbers("Q7")}, bytes(16)), "is damaged or was cut short"),
        (raw(ours() | {"a": numbers("F8_E4M3", (16,))}, bytes(16)), "'a' of a type that prodssm does not write"),
    ],
)
def test_a_file_that_cannot_be_used_says_its_path_and_what_to_do(path, content, says):
    path.write_bytes(content)
    with pytest.raises(FileError, match=rf"(?s)model\.safetensors.*{says}"):
        read(path)


def test_a_file_cut_anywhere_is_refused(path):
    write(path, "note", CONFIG, {"a": np.arange(3.0)})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"model\.safetensors"):
            read(path)


def test_a_damaged_byte_in_the_header_is_refused_or_harmless(path):
    write(path, "note", CONFIG, {"a": np.arange(3.0)})
    whole, rng = path.read_bytes(), np.random.default_rng(1)
    for _ in range(500):
        content = bytearray(whole)
        content[rng.integers(len(whole) - 24)] = rng.integers(256)
        path.write_bytes(content)
        try:
            read(path)
        except FileError as error:
            assert "model.safetensors" in str(error)  # noqa: PT017


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def test_loading_executes_nothing(path):
    mark = path.with_name("executed")
    path.write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(FileError, match="is not a safetensors file"):
        read(path)
    assert not mark.exists()


def test_a_file_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors does not exist; check the path"):
        read(tmp_path / "nothing.safetensors")
    with pytest.raises(FileError, match="is not a file"):
        read(tmp_path)


# ---------------------------------------------------------------- trees


def model(seed=0, hidden=5):
    return ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, hidden, 1), key=jr.key(seed)),
        process_noise=jnp.array([0.1]),
        measurement_noise=jnp.array([0.2]),
    )


def everything(seed=0):
    """A tree with a leaf of every sort."""
    rng = np.random.default_rng(seed)
    return {
        "model": model(seed),
        "key": jr.key(seed),
        "keys": jr.split(jr.key(seed, impl="rbg"), 3),
        "old key": jr.PRNGKey(seed),
        "step": jnp.array(seed),
        "on": jnp.array([seed == 0, True]),
        "numpy": rng.normal(size=(2, 2)),
        "single": rng.normal(size=2).astype(np.float32),
        "scalar": np.float32(seed),
        "rest": (jax.nn.relu, "text", 3, 0.5, None),
    }


def test_leaves_are_named_by_where_they_stand():
    tree = {"net": eqx.nn.MLP(1, 1, 2, 1, key=jr.key(0)), "pair": (jnp.zeros(1), np.ones(2)), "key": jr.key(3)}
    found = flatten(tree)
    layers = [f"net.layers.{n}.{part}" for n in (0, 1) for part in ("weight", "bias")]
    assert set(found) == {*layers, "pair.0", "pair.1", "key"}
    assert same(found["key"], np.array([0, 3], dtype=np.uint32))
    assert flatten(jnp.zeros(3)).keys() == {"value"}
    assert flatten({"f": len, "n": 3}) == {}


def test_a_tree_survives_the_file_bit_by_bit(path):
    tree, template = everything(0), everything(1)
    assert not same_trees(tree, template)
    write(path, "checkpoint", {}, flatten(tree))
    found = restore(template, read(path).arrays)
    assert same_trees(found, tree)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert type(a) is type(b)
    assert jr.key_impl(found["keys"]) == jr.key_impl(tree["keys"])
    assert found["rest"] == tree["rest"]
    assert found["on"].tolist() == [True, True]
    assert (jr.normal(found["key"], (3,)) == jr.normal(tree["key"], (3,))).all()


def test_a_restored_model_filters_to_the_same_bit():
    series = ps.Series(np.sin(np.arange(8.0)))
    found = restore(model(1), flatten(model(0)))
    first, second = (ps.filter_states(each, series) for each in (model(0), found))
    assert same(first.mean, second.mean)
    assert same(first.cov, second.cov)


def test_training_goes_on_from_a_checkpoint_as_if_never_stopped(path):
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    @eqx.filter_jit
    def step(net, state, key):
        key, now = jr.split(key)
        x = jr.normal(now, (8, 2))
        grads = eqx.filter_grad(lambda n: ((jax.vmap(n)(x)[:, 0] - x.sum(axis=1)) ** 2).mean())(net)
        updates, state = optimiser.update(grads, state, eqx.filter(net, eqx.is_inexact_array))
        return eqx.apply_updates(net, updates), state, key

    def start(seed):
        net = eqx.nn.MLP(2, 1, 4, 1, key=jr.key(seed))
        return net, optimiser.init(eqx.filter(net, eqx.is_inexact_array)), jr.key(seed)

    # optax mixes its integer step counter with floats.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        halfway = start(0)
        for _ in range(3):
            halfway = step(*halfway)
        write(path, "checkpoint", {"step": 3}, flatten(halfway))
        resumed = restore(start(7), read(path).arrays)
        for _ in range(3):
            halfway, resumed = step(*halfway), step(*resumed)
    assert same_trees(halfway, resumed)


def test_flattened_and_restored_arrays_are_copies():
    tree = {"a": np.zeros(64), "b": jnp.zeros(64)}
    arrays = flatten(tree)
    tree["a"][0] = 1.0
    assert arrays["a"][0] == 0.0
    found = restore(tree, arrays)
    for array in arrays.values():
        array[1] = 2.0
    assert found["a"][1] == found["b"][1] == 0.0


def test_the_stored_precision_wins():
    template = {"a": jnp.zeros(2, dtype=float), "b": np.zeros(2), "c": jnp.array(1, dtype=jnp.int32)}
    stored = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32), "c": np.array(1, dtype=np.int8)}
    assert same_trees(restore(template, stored), stored)


@pytest.mark.parametrize("stored", [np.ones(2), np.ones(2, dtype=np.int64)], ids=["float64", "int64"])
def test_arrays_that_jax_would_round_are_refused(stored):
    with jax.enable_x64(False):
        template = {"a": jnp.ones(2, dtype=jnp.float32 if stored.dtype.kind == "f" else jnp.int32)}
        with pytest.raises(ValueError, match=r"a is \w+64, which JAX would round now; .*jax_enable_x64"):
            restore(template, {"a": stored})
    assert same(restore({"a": np.zeros(2, stored.dtype)}, {"a": stored})["a"], stored)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": np.zeros((2, 3))}, "missing: key; unknown: none"),
        ({"b": np.zeros(2), "key": np.zeros(2, np.uint32)}, "missing: a; unknown: b"),
        ({"a": np.zeros((3, 2)), "key": np.zeros(2, np.uint32)}, r"a must have shape \(2, 3\) like the template, got \(3, 2\)"),
        ({"a": np.zeros((2, 3), int), "key": np.zeros(2, np.uint32)}, r"a must be of the kind of float\d\d .* got int64"),
        ({"a": np.zeros((2, 3), bool), "key": np.zeros(2, np.uint32)}, r"a must be of the kind of float\d\d .* got bool"),
        ({"a": np.zeros((2, 3)), "key": np.zeros(4, np.uint32)}, r"key must have shape \(2,\)"),
        ({"a": np.zeros((2, 3)), "key": np.zeros(2, np.uint16)}, "key must be of the kind of uint32"),
    ],
)
def test_arrays_of_another_tree_are_refused(arrays, says):
    template = {"a": np.zeros((2, 3)), "key": jr.key(0)}
    with pytest.raises(ValueError, match=says):
        restore(template, arrays)


def test_a_model_of_another_size_is_refused_with_a_few_names():
    small, large = ([np.zeros(1)] * size for size in (2, 9))
    with pytest.raises(ValueError, match="missing: none; unknown: 2, 3, 4, 5, 6 and 2 more"):
        restore(small, flatten(large))
    with pytest.raises(ValueError, match=r"transition\S* must have shape"):
        restore(model(hidden=5), flatten(model(hidden=4)))


def test_two_arrays_with_one_name_are_refused():
    tree = {"a.b": jnp.zeros(1), "a": {"b": jnp.ones(1)}}
    with pytest.raises(ValueError, match=r"tree must have a name of its own for every array, got two called 'a\.b'"):
        flatten(tree)
    with pytest.raises(ValueError, match="template must have a name"):
        restore(tree, {"a.b": np.zeros(1)})
