"""Makes the SavedModels of the tests of the TensorFlow engine.

`graphs/` has the standard graphs of the engines' conformance suite, without the values of their variables. `models/`
has models as TensorFlow writes them: by tf.saved_model.save, by the builder of version 1, and by Keras.
"""

import argparse
import os
import pathlib
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

v1 = tf.compat.v1
TABLE = [1 << 20, 16]
# Names of the element types in the product.
TYPES = {
    "bool": tf.bool, "uint8": tf.uint8, "uint16": tf.uint16, "uint32": tf.uint32, "uint64": tf.uint64,
    "int8": tf.int8, "int16": tf.int16, "int32": tf.int32, "int64": tf.int64, "float16": tf.float16,
    "bfloat16": tf.bfloat16, "float32": tf.float32, "float64": tf.float64, "complex64": tf.complex64,
    "complex128": tf.complex128, "float8e4m3fn": tf.dtypes.experimental.float8_e4m3fn,
    "float8e5m2": tf.dtypes.experimental.float8_e5m2, "float8e4m3fnuz": tf.as_dtype(26),
    "float8e5m2fnuz": tf.as_dtype(28), "string": tf.string,
}


def write(path, graph, inputs, outputs, edit=lambda meta: None):
    """Writes a SavedModel with one signature and without variables."""
    saved = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    meta = saved.meta_graphs.add()
    meta.meta_info_def.tags.append("serve")
    meta.graph_def.CopyFrom(graph.as_graph_def())
    signature = meta.signature_def["serving_default"]
    signature.method_name = "tensorflow/serving/predict"
    for name, tensor in inputs.items():
        signature.inputs[name].CopyFrom(v1.saved_model.build_tensor_info(tensor))
    for name, tensor in outputs.items():
        signature.outputs[name].CopyFrom(v1.saved_model.build_tensor_info(tensor))
    edit(meta)
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(saved.SerializeToString(deterministic=True))


def variable(name, shape):
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=name, name=name)
    return handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)


def graphs(to):
    for name, dtype in TYPES.items():
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(dtype, [None], name="x")
            write(to / f"echo-{name}.savedmodel", graph, {"x": x}, {"y": tf.identity(x)})
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [], name="x")
        # The same tensor is input and output.
        write(to / "echo-scalar.savedmodel", graph, {"x": x}, {"y": x})
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None], name="x")
        half, two = variable("half", [1])[1], variable("two", [1])[1]
        write(to / "half_plus_two.savedmodel", graph, {"x": x}, {"y": x * half + two})
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None], name="x")
        write(to / "two_outputs.savedmodel", graph, {"x": x}, {"half": x / 2, "plus": x + 2})
    with tf.Graph().as_default() as graph:
        index = v1.placeholder(tf.int64, [None], name="index")
        rows = tf.raw_ops.GatherV2(params=variable("table", TABLE)[1], indices=index, axis=0)
        write(to / "pick.savedmodel", graph, {"index": index}, {"rows": rows})


class HalfPlusTwo(tf.Module):
    def __init__(self):
        super().__init__()
        self.half = tf.Variable([0.5], name="half")
        self.two = tf.Variable([2.0], name="two")
        # As an optimiser's: saved, but no signature uses it.
        self.slot = tf.Variable(tf.zeros([64, 64]), name="slot")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def predict(self, x):
        return {"y": x * self.half + self.two}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def three(self, x):
        return {"y3": x * self.half + 3.0}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x"),
                                  tf.TensorSpec([], tf.float32, name="bias")])
    def defaults(self, x, bias=tf.constant(10.0)):
        return {"y": x * self.half + bias}


class Dense(tf.Module):
    """Large enough for the pool. Branches and loops lead to the same variables."""

    def __init__(self, seed, size=1024):
        super().__init__()
        random = np.random.RandomState(7)
        self.w = tf.Variable(random.rand(size, size).astype("f"), name="w")
        self.v = tf.Variable(random.rand(size, size).astype("f") * np.float32(seed), name="v")

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float32, name="x")])
    def predict(self, x):
        y = tf.nn.relu(tf.matmul(x, self.w))
        if tf.reduce_sum(x) > 0:
            y = tf.matmul(y, self.v)
        for _ in tf.range(2):
            y = y + tf.reduce_sum(self.w[0])
        return {"y": y}


class Counter(tf.Module):
    def __init__(self):
        super().__init__()
        self.counter = tf.Variable(0.0, name="counter")
        self.step = tf.Variable(1.0, name="step")

    @tf.function(input_signature=[])
    def get_counter(self):
        return {"output": self.counter.read_value()}

    @tf.function(input_signature=[])
    def incr_counter(self):
        return {"output": self.counter.assign_add(self.step)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="delta")])
    def incr_counter_by(self, delta):
        return {"output": self.counter.assign_add(delta)}

    @tf.function(input_signature=[])
    def reset_counter(self):
        return {"output": self.counter.assign(0.0)}


class Lookup(tf.Module):
    """A table that is filled from an asset, and string inputs."""

    def __init__(self, vocabulary):
        super().__init__()
        initializer = tf.lookup.TextFileInitializer(
            vocabulary, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER)
        self.table = tf.lookup.StaticHashTable(initializer, -1)
        self.scale = tf.Variable(np.full([4], 3, np.int64), name="scale")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def predict(self, word):
        return {"id": self.table.lookup(word) * self.scale[0], "upper": tf.strings.upper(word)}


class Mutable(tf.Module):
    """A table whose contents are in the checkpoint."""

    def __init__(self):
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.table.insert(["a", "b"], [1, 2])
        self.scale = tf.Variable(np.full([4], 3, np.int64), name="scale")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def predict(self, word):
        return {"id": self.table.lookup(word) * self.scale[0]}


class Words(tf.Module):
    """A string variable, which has no fixed size."""

    def __init__(self):
        super().__init__()
        self.words = tf.Variable(["zero", "one", "a longer word than fits inside a TString"], name="words")
        self.scale = tf.Variable(np.full([4], 1, np.int64), name="scale")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="index")])
    def predict(self, index):
        return {"word": tf.gather(self.words, index * self.scale[0])}


class Embedding(tf.Module):
    """A lookup in a table, which TensorFlow does in the variable itself, inside a function."""

    def __init__(self, rows=1 << 19, columns=16):
        super().__init__()
        numbers = np.arange(rows, dtype="f")
        self.table = tf.Variable(np.repeat(numbers, columns).reshape(rows, columns), name="table")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="index")])
    def predict(self, index):
        return {"rows": tf.reduce_mean(tf.nn.embedding_lookup(self.table, index), axis=1)}


class Returned(tf.Module):
    """An output that is a variable, and one that is an input."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(np.arange(2048, dtype="f"), name="w")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def predict(self, x):
        return {"w": self.w.read_value(), "x_again": tf.identity(x)}


def keras_model():
    inputs = tf.keras.Input([32], name="x")
    hidden = tf.keras.layers.Dense(64, activation="relu")(inputs)
    hidden = tf.keras.layers.BatchNormalization()(hidden)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(4, name="scores")(hidden))


def version_1(to, vocabulary):
    """Writes half plus two with ref variables, as TensorFlow Serving's example of version 1, and with a table."""
    with tf.Graph().as_default(), v1.Session() as session:
        a = v1.Variable([0.5], name="a", use_resource=False)
        b = v1.Variable([2.0], name="b", use_resource=False)
        local = v1.Variable([1.0], name="local", use_resource=False, collections=[v1.GraphKeys.LOCAL_VARIABLES])
        x = v1.placeholder(tf.float32, [None], name="x")
        word = v1.placeholder(tf.string, [None], name="word")
        y = tf.add(tf.multiply(a, x), b, name="y")
        initializer = tf.lookup.TextFileInitializer(
            vocabulary, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER)
        table = tf.lookup.StaticHashTable(initializer, -1)
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, tf.convert_to_tensor(vocabulary))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer()])
        info = v1.saved_model.build_tensor_info
        define = v1.saved_model.build_signature_def
        builder = v1.saved_model.Builder(str(to))
        builder.add_meta_graph_and_variables(
            session, ["serve"],
            signature_def_map={
                "regress_x_to_y": define({"inputs": info(x)}, {"outputs": info(y)}, "tensorflow/serving/regress"),
                "serving_default": define({"x": info(x)}, {"y": info(y + local)}, "tensorflow/serving/predict"),
                "lookup": define({"word": info(word)}, {"id": info(table.lookup(word))}, "tensorflow/serving/predict"),
            },
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=tf.group(v1.tables_initializer(), v1.local_variables_initializer()))
        builder.save()


def version_1_counter(to):
    """Writes TensorFlow Serving's saved_model_counter: signatures that assign to a ref variable."""
    with tf.Graph().as_default(), v1.Session() as session:
        counter = v1.Variable(0.0, name="counter", use_resource=False)
        delta = v1.placeholder(tf.float32, [], name="delta")
        kept = v1.Variable(tf.ones([2048]), name="kept", use_resource=False)
        operations = {
            "get_counter": ({}, tf.identity(counter)), "incr_counter": ({}, v1.assign_add(counter, kept[0])),
            "incr_counter_by": ({"delta": delta}, v1.assign_add(counter, delta)),
            "reset_counter": ({}, v1.assign(counter, 0.0)),
        }
        session.run(v1.global_variables_initializer())
        info = v1.saved_model.build_tensor_info
        signatures = {
            name: v1.saved_model.build_signature_def(
                {key: info(tensor) for key, tensor in inputs.items()}, {"output": info(output)},
                "tensorflow/serving/predict")
            for name, (inputs, output) in operations.items()
        }
        builder = v1.saved_model.Builder(str(to))
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signatures)
        builder.save()


def version_1_total(to):
    """Writes a signature that assigns to a ref variable and then reads it."""
    with tf.Graph().as_default(), v1.Session() as session:
        total = v1.Variable(0.0, name="total", use_resource=False)
        kept = v1.Variable(tf.ones([2048]), name="kept", use_resource=False)
        x = v1.placeholder(tf.float32, [], name="x")
        with tf.control_dependencies([v1.assign(total, total + x * kept[0])]):
            y = total.read_value()
        session.run(v1.global_variables_initializer())
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder = v1.saved_model.Builder(str(to))
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map={"serving_default": signature})
        builder.save()


def initialised_counter(to):
    """Writes an initialisation that adds to a variable."""
    with tf.Graph().as_default(), v1.Session() as session:
        starts = v1.Variable(1.0, name="starts", use_resource=True)
        x = v1.placeholder(tf.float32, [], name="x")
        y = x + starts
        session.run(v1.global_variables_initializer())
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder = v1.saved_model.Builder(str(to))
        builder.add_meta_graph_and_variables(
            session, ["serve"], signature_def_map={"serving_default": signature},
            main_op=tf.group(starts.assign_add(1.0, read_value=False)))
        builder.save()


def frozen(to):
    """Writes a large constant instead of a variable."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None], name="x")
        w = tf.constant(np.arange(1 << 19, dtype="f"), name="w")
        write(to, graph, {"x": x}, {"y": x + tf.reduce_max(w)})


def sparse(to):
    """Writes one signature with a sparse tensor beside a plain one."""
    def edit(meta):
        signature = meta.signature_def["sparse"]
        signature.CopyFrom(meta.signature_def["serving_default"])
        x = signature.inputs["x"]
        x.coo_sparse.values_tensor_name = "x:0"
        x.coo_sparse.indices_tensor_name = "x:0"
        x.coo_sparse.dense_shape_tensor_name = "x:0"

    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None], name="x")
        write(to, graph, {"x": x}, {"y": x + 1}, edit)


def unknown(to):
    """Writes an operator that this TensorFlow does not have."""
    def edit(meta):
        next(node for node in meta.graph_def.node if node.op == "Neg").op = "NegOfTheFuture"

    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None], name="x")
        write(to, graph, {"x": x}, {"y": tf.negative(x)}, edit)


def models(to, scratch):
    vocabulary = str(scratch / "vocabulary.txt")
    pathlib.Path(vocabulary).write_text("zero\none\ntwo\n")
    module = HalfPlusTwo()
    save = tf.saved_model.save
    save(module, str(to / "half_plus_two"), signatures={
        "serving_default": module.predict, "three": module.three, "defaults": module.defaults})
    for name, seed in (("dense_1", 1), ("dense_2", 2)):
        module = Dense(seed)
        save(module, str(to / name), signatures=module.predict)
    for name, module in (("lookup", Lookup(vocabulary)), ("mutable_table", Mutable()), ("words", Words()),
                         ("returned", Returned()), ("embedding", Embedding())):
        save(module, str(to / name), signatures=module.predict)
    counter = Counter()
    save(counter, str(to / "counter"), signatures={
        name: getattr(counter, name) for name in ("get_counter", "incr_counter", "incr_counter_by", "reset_counter")})
    keras_model().export(str(to / "keras"), verbose=False)
    version_1(to / "version_1", vocabulary)
    version_1_counter(to / "version_1_counter")
    version_1_total(to / "version_1_total")
    initialised_counter(to / "initialised_counter")
    frozen(to / "frozen")
    sparse(to / "sparse")
    unknown(to / "unknown")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=pathlib.Path, required=True)
    to = parser.parse_args().to
    shutil.rmtree(to, ignore_errors=True)
    graphs(to / "graphs")
    (to / "scratch").mkdir()
    models(to / "models", to / "scratch")
    # The models must read their own copies.
    shutil.rmtree(to / "scratch")


if __name__ == "__main__":
    main()
