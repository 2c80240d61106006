"""SavedModels of the tests, made with TensorFlow's Python package. Each tests one thing that a server can get wrong."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

tf1 = tf.compat.v1
FEATURES = 26
BUCKETS = 1000
WIDTH = 8


def export(path: pathlib.Path, module: tf.Module, signatures) -> pathlib.Path:
    tf.saved_model.save(module, str(path), signatures=signatures)
    return path


def _version_1(path: pathlib.Path, build) -> pathlib.Path:
    """Writes a graph of TensorFlow 1. `build()` returns the signatures and the assets' tensors."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        signatures, initialise = build()
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        builder = tf1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map=signatures,
            assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
            main_op=tf.group(tf1.tables_initializer(), *initialise),
        )
        builder.save()
    return path


def half_plus(path: pathlib.Path, addend: float = 2.0) -> pathlib.Path:
    """Saves TensorFlow Serving's example x / 2 + addend, with signatures of all methods and variables of TensorFlow 1."""

    def build():
        half = tf1.Variable(0.5, name="a", use_resource=False)
        add = tf1.Variable(addend, name="b", use_resource=False)
        more = tf1.Variable(addend + 1, name="c", use_resource=False)
        serialized = tf1.placeholder(tf.string, name="tf_example")
        features = {
            "x": tf.io.FixedLenFeature([1], tf.float32),
            "x2": tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0]),
        }
        parsed = tf1.io.parse_example(serialized, features)
        x = tf.identity(parsed["x"], name="x")
        y = tf.add(tf.multiply(half, x), add, name="y")
        y2 = tf.add(tf.multiply(half, x), more, name="y2")
        x2 = tf.identity(parsed["x2"], name="x2")
        y3 = tf.add(tf.multiply(half, x2), more, name="y3")
        info = tf1.saved_model.build_tensor_info

        def signature(method, inputs, outputs):
            inputs = {name: info(tensor) for name, tensor in inputs.items()}
            outputs = {name: info(tensor) for name, tensor in outputs.items()}
            return tf1.saved_model.build_signature_def(inputs, outputs, f"tensorflow/serving/{method}")

        return {
            "regress_x_to_y": signature("regress", {"inputs": serialized}, {"outputs": y}),
            "regress_x_to_y2": signature("regress", {"inputs": serialized}, {"outputs": y2}),
            "regress_x2_to_y3": signature("regress", {"inputs": x2}, {"outputs": y3}),
            "classify_x_to_y": signature("classify", {"inputs": serialized}, {"scores": y}),
            "serving_default": signature("predict", {"x": x}, {"y": y}),
        }, []

    return _version_1(path, build)


def estimator(path: pathlib.Path) -> pathlib.Path:
    """Saves a wide model in an estimator's style.

    It has hashed and numeric columns from tf.Example, and classes with their labels.
    """

    def build():
        serialized = tf1.placeholder(tf.string, [None], name="input_example_tensor")
        features = {
            "age": tf.io.FixedLenFeature([1], tf.float32),
            "city": tf.io.FixedLenFeature([1], tf.string, default_value=["nowhere"]),
            "clicks": tf.io.VarLenFeature(tf.int64),
        }
        parsed = tf1.io.parse_example(serialized, features)
        city = tf1.strings.to_hash_bucket_fast(parsed["city"], 100)
        random = np.random.default_rng(7)
        weights = tf1.get_variable("city", initializer=random.normal(size=(100, 3)).astype(np.float32), use_resource=True)
        age = tf1.get_variable("age", initializer=random.normal(size=(1, 3)).astype(np.float32), use_resource=True)
        clicks = tf1.cast(tf1.sparse_reduce_sum(parsed["clicks"], axis=1, keepdims=True), tf.float32)
        clicks = tf1.reshape(clicks, [-1, 1])
        logits = tf1.gather(weights, tf1.squeeze(city, 1)) + tf1.matmul(parsed["age"] / 50.0, age) + clicks * 0.01
        scores = tf1.nn.softmax(logits)
        labels = tf1.constant([["no", "maybe", "yes"]], tf.string)
        classes = tf1.tile(labels, [tf1.shape(scores)[0], 1])
        score = tf1.reduce_sum(scores * [[0.0, 0.5, 1.0]], axis=1)
        saved = tf1.saved_model
        return {
            "serving_default": saved.classification_signature_def(serialized, classes, scores),
            "classification": saved.classification_signature_def(serialized, classes, scores),
            "regression": saved.regression_signature_def(serialized, tf1.expand_dims(score, 1)),
            "predict": saved.predict_signature_def({"examples": serialized}, {"probabilities": scores, "class": classes}),
        }, []

    return _version_1(path, build)


def labels(path: pathlib.Path) -> pathlib.Path:
    """Saves a model of classes whose labels are a feature of the example, of any bytes."""

    def build():
        serialized = tf1.placeholder(tf.string, [None])
        parsed = tf1.io.parse_example(serialized, {"label": tf.io.FixedLenFeature([2], tf.string)})
        classes = tf.identity(parsed["label"])
        scores = tf.ones_like(classes, tf.float32)
        return {"serving_default": tf1.saved_model.classification_signature_def(serialized, classes, scores)}, []

    return _version_1(path, build)


def vocabulary(path: pathlib.Path) -> pathlib.Path:
    """Saves a table that is filled from an asset, and an embedding of its ids."""
    words = path.parent / "words.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    words.write_text("red\ngreen\nblue\n")

    class Colours(tf.Module):
        def __init__(self):
            super().__init__()
            lines = tf.lookup.TextFileInitializer(
                str(words), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
            )
            self.table = tf.lookup.StaticVocabularyTable(lines, num_oov_buckets=1)
            self.rows = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2), name="rows")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
        def __call__(self, word):
            ids = self.table.lookup(word)
            return {"id": ids, "row": tf.gather(self.rows, ids), "word": tf.strings.upper(word)}

    module = Colours()
    export(path, module, {"serving_default": module.__call__})
    # The model must read its own copy.
    words.unlink()
    return path


def mutable_table(path: pathlib.Path) -> pathlib.Path:
    """Saves a table whose content is in the checkpoint, beside a variable."""

    class Lookup(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, default_value=-1.0)
            self.table.insert(["a", "b"], [10.0, 20.0])
            self.scale = tf.Variable(2.0, name="scale")

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="key")])
        def __call__(self, key):
            return {"value": self.table.lookup(key) * self.scale}

    module = Lookup()
    return export(path, module, {"serving_default": module.__call__})


def keras_preprocessing(path: pathlib.Path) -> pathlib.Path:
    """Saves a Keras model with StringLookup and Normalization, exported by Keras."""
    colour = keras.Input((1,), dtype="string", name="colour")
    price = keras.Input((1,), dtype="float32", name="price")
    lookup = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
    normal = keras.layers.Normalization(mean=[10.0], variance=[4.0])
    joined = keras.layers.Concatenate()([lookup(colour), normal(price)])
    keras.utils.set_random_seed(5)
    hidden = keras.layers.Dense(8, activation="relu")(joined)
    out = keras.layers.Dense(2, name="out")(hidden)
    model = keras.Model({"colour": colour, "price": price}, out)
    model.export(str(path), verbose=False)
    return path


def recommender(path: pathlib.Path, buckets: int = BUCKETS) -> pathlib.Path:
    """Saves a model of 26 string features, each hashed into an embedding table of its own, and a small network."""

    class Recommender(tf.Module):
        def __init__(self):
            super().__init__()
            random = np.random.default_rng(3)
            self.tables = [
                tf.Variable(random.standard_normal((buckets, WIDTH), np.float32), name=f"table{i}") for i in range(FEATURES)
            ]
            self.dense = tf.Variable(random.normal(size=(FEATURES * WIDTH, 1)).astype(np.float32) * 0.05, name="dense")

        @tf.function
        def __call__(self, **features):
            rows = [
                tf.gather(self.tables[i], tf.strings.to_hash_bucket_fast(features[f"c{i:02}"], buckets))
                for i in range(FEATURES)
            ]
            return {"ctr": tf.sigmoid(tf.matmul(tf.concat(rows, axis=1), self.dense))}

    module = Recommender()
    specs = {f"c{i:02}": tf.TensorSpec([None], tf.string, name=f"c{i:02}") for i in range(FEATURES)}
    return export(path, module, {"serving_default": module.__call__.get_concrete_function(**specs)})


def product(path: pathlib.Path) -> pathlib.Path:
    """Saves the model y = v1 * v2 * x for an input of any rank, from tf.train.Checkpoint."""
    root = tf.train.Checkpoint()
    root.v1 = tf.Variable(3.0)
    root.v2 = tf.Variable(2.0)
    root.f = tf.function(lambda x: {"y": root.v1 * root.v2 * x})
    return export(path, root, root.f.get_concrete_function(tf.TensorSpec(None, tf.float32)))


def two_signatures(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with two signatures that answer 1 and 2."""
    root = tf.Module()
    root.f = tf.function(lambda x: {"y": tf.ones_like(x)}, input_signature=[tf.TensorSpec(None, tf.float32, name="x")])
    root.g = tf.function(lambda x: {"y": 2 * tf.ones_like(x)}, input_signature=[tf.TensorSpec(None, tf.float32, name="x")])
    return export(path, root, {"serving_default": root.f, "custom_signature_key": root.g})


def placed_on_gpu(path: pathlib.Path) -> pathlib.Path:
    """Saves a graph of TensorFlow 1 whose operations are placed on a GPU, as a trainer with GPUs exports it."""

    def build():
        x = tf1.placeholder(tf.float32, [None, 1])
        weight = tf1.get_variable("weight", initializer=[[4.0]], use_resource=True)
        y = tf.matmul(x, weight)
        return {"serving_default": tf1.saved_model.predict_signature_def({"x": x}, {"y": y})}, []

    _version_1(path, build)
    file = path / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for node in model.meta_graphs[0].graph_def.node:
        node.device = "/device:GPU:0"
    file.write_bytes(model.SerializeToString())
    return path


def running_total(path: pathlib.Path) -> pathlib.Path:
    """Saves a graph of TensorFlow 1 that adds to a variable, and then reads it as programs usually do."""

    def build():
        x = tf1.placeholder(tf.float32, [])
        total = tf1.get_variable("total", initializer=0.0, use_resource=False)
        with tf.control_dependencies([tf1.assign(total, total + x)]):
            y = tf.identity(total)
        return {"serving_default": tf1.saved_model.predict_signature_def({"x": x}, {"y": y})}, []

    return _version_1(path, build)


def keras_sequential(path: pathlib.Path) -> pathlib.Path:
    """Saves a Keras Sequential model, the identity, by tf.saved_model.save."""
    model = keras.Sequential([keras.Input((1,), dtype="float32", name="x"), keras.layers.Identity(name="y")])

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])
    def serve(x):
        return {"y": model(x)}

    return export(path, model, {"serving_default": serve})


def counter(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with a variable that requests change."""

    class Counter(tf.Module):
        def __init__(self):
            super().__init__()
            self.count = tf.Variable(0.0, name="count")

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="by")])
        def add(self, by):
            return {"count": self.count.assign_add(by)}

        @tf.function(input_signature=[])
        def get(self):
            return {"count": self.count.read_value()}

    module = Counter()
    return export(path, module, {"serving_default": module.add, "get": module.get})


def ragged_default(path: pathlib.Path) -> pathlib.Path:
    """Saves a default signature with a ragged output, which cannot be served, beside one that changes a variable."""

    class Ragged(tf.Module):
        def __init__(self):
            super().__init__()
            self.count = tf.Variable(0.0, name="count")

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
        def add(self, x):
            return {"count": self.count.assign_add(x)}

        @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="x")])
        def split(self, x):
            return {"words": tf.strings.split([x])}

    module = Ragged()
    return export(path, module, {"serving_default": module.split, "add": module.add})


def types(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with one input and one output of each type that Python can send."""
    kinds = [tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64]
    kinds += [tf.bool, tf.string, tf.float16, tf.bfloat16, tf.complex64, tf.complex128]
    module = tf.Module()
    specs = {kind.name: tf.TensorSpec([None, 2], kind, name=kind.name) for kind in kinds}
    module.f = tf.function(lambda **inputs: {f"{name}_out": tf.identity(value) for name, value in inputs.items()})
    return export(path, module, {"serving_default": module.f.get_concrete_function(**specs)})


def bytes_out(path: pathlib.Path) -> pathlib.Path:
    """Saves a model with binary strings in and out, as images are sent."""
    module = tf.Module()
    module.f = tf.function(
        lambda image_bytes: {"copy_bytes": image_bytes, "length": tf.strings.length(image_bytes)},
        input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")],
    )
    return export(path, module, {"serving_default": module.f})


def check_fails(path: pathlib.Path) -> pathlib.Path:
    """Saves a model that refuses values above 10 by an assertion of the graph."""
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 10.0, message="too large for this model")]):
            return {"y": tf.identity(x)}

    module.f = serve
    return export(path, module, {"serving_default": module.f})


def aborts(path: pathlib.Path) -> pathlib.Path:
    """Saves a model that ends its process at a value above 10, as a failed CHECK in TensorFlow does."""
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def serve(x):
        def end():
            with tf.control_dependencies([tf.raw_ops.Abort(error_msg="Check failed: a test", exit_without_error=False)]):
                return tf.identity(x)

        return {"y": tf.cond(tf.reduce_any(x > 10.0), end, lambda: tf.identity(x))}

    module.f = serve
    return export(path, module, {"serving_default": module.f})


MODELS = {
    "half_plus_two": half_plus,
    "half_plus_three": lambda path: half_plus(path, 3.0),
    "estimator": estimator,
    "labels": labels,
    "vocabulary": vocabulary,
    "mutable_table": mutable_table,
    "keras_preprocessing": keras_preprocessing,
    "recommender": recommender,
    "product": product,
    "two_signatures": two_signatures,
    "placed_on_gpu": placed_on_gpu,
    "keras_sequential": keras_sequential,
    "counter": counter,
    "ragged_default": ragged_default,
    "running_total": running_total,
    "types": types,
    "bytes_out": bytes_out,
    "check_fails": check_fails,
}
