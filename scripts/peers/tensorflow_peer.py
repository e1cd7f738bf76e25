"""The DTensor tutorial's data-parallel run in TensorFlow, on N devices of one process:

  python tensorflow_peer.py --data DIR --devices 2

Weights are replicated, the batch is sharded over the mesh's dimension "batch"; Adam as the
tutorial's own variables. One device: TensorFlow without DTensor.
"""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tensorflow.experimental import dtensor

from peer import (EPSILON, RATE, SEED, Clock, arguments, batch_starts, digits, timed_checkpoint,
                  timed_evaluation, widths)


class Single:
    """Variables and batches of one device."""
    variable = staticmethod(lambda make, rank, *args: tf.Variable(make(*args)))
    batch = staticmethod(lambda value: value)
    number = staticmethod(float)


class Mesh:
    """The same over a mesh of devices."""

    def __init__(self, devices):
        self.mesh = dtensor.create_mesh([("batch", devices)],
                                        devices=[f"CPU:{i}" for i in range(devices)])

    def variable(self, make, rank, *args):
        layout = dtensor.Layout.replicated(self.mesh, rank)
        return dtensor.DVariable(dtensor.call_with_layout(make, layout, *args))

    def batch(self, value):
        layout = dtensor.Layout.batch_sharded(self.mesh, "batch", value.shape.rank)
        return dtensor.pack(tf.split(value, self.mesh.num_local_devices()), layout)

    def number(self, value):
        return float(dtensor.unpack(value)[0])


def glorot(n_in, n_out):
    limit = (6 / (n_in + n_out)) ** 0.5
    return tf.random.stateless_uniform((n_in, n_out), (SEED, SEED + 1), -limit, limit)


class Model:
    def __init__(self, place, sizes):
        self.layers = [(place.variable(glorot, 2, i, o), place.variable(tf.zeros, 1, [o]))
                       for i, o in zip(sizes, sizes[1:])]
        self.variables = [v for layer in self.layers for v in layer]
        self.moments = [[place.variable(tf.zeros, v.shape.rank, v.shape) for _ in range(2)]
                        for v in self.variables]
        self.powers = [place.variable(tf.ones, 0, []) for _ in range(2)]

    def logits(self, x):
        for w, b in self.layers[:-1]:
            x = tf.nn.relu(tf.matmul(x, w) + b)
        w, b = self.layers[-1]
        return tf.matmul(x, w) + b

    def loss(self, x, y):
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.logits(x)))

    @tf.function
    def correct(self, x, y):
        hits = tf.equal(tf.argmax(self.logits(x), axis=1), y)
        return tf.reduce_sum(tf.cast(hits, tf.float32))

    @tf.function
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(x, y)
        power1, power2 = self.powers
        power1.assign(0.9 * power1)
        power2.assign(0.999 * power2)
        gradients = tape.gradient(loss, self.variables)
        for v, g, (m, s) in zip(self.variables, gradients, self.moments):
            m.assign(0.9 * m + 0.1 * g)
            s.assign(0.999 * s + 0.001 * g * g)
            v.assign_sub(RATE * (m / (1 - power1)) / (tf.sqrt(s / (1 - power2)) + EPSILON))
        return loss


def main():
    a = arguments(devices=dict(type=int, default=2))
    if a.devices > 1:  # before anything touches a device
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * a.devices)
    place = Mesh(a.devices) if a.devices > 1 else Single()
    x, y = (tf.constant(values) for values in digits(a))
    model, clock = Model(place, widths(a)), Clock(a)
    for start in batch_starts(a, len(x)):
        batch = (place.batch(v[start:start + a.batch_size]) for v in (x, y))
        loss = place.number(model.step(*batch))
        clock.mark()
    def correct(*batch):
        return place.number(model.correct(*(place.batch(tf.constant(v)) for v in batch)))
    state = tf.train.Checkpoint(variables=model.variables, moments=model.moments,
                                powers=model.powers)
    clock.report(loss, {**timed_evaluation(a, correct), **timed_checkpoint(state.write)})


if __name__ == "__main__":
    main()
