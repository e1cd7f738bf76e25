#!/usr/bin/env python3
"""TensorFlow's losses in the tutorial's run: the figures in tests/end_to_end/tutorial_test.py.

  scripts/peers/install.sh FOLDER tensorflow-cpu==2.21.0
  build/release/lockstep generate DRAWN     # the drawn digits, or another folder of IDX files
  FOLDER/bin/python scripts/peers/tensorflow_losses.py DRAWN [--layers 700,500] [--steps 1,2,3,5,10,20]

The first 5000 training and test images, divided by 255, in the order of the files; batches of 128,
the last one of 8; three epochs. Dense layers with ReLU, Glorot weights by
tf.random.stateless_uniform with seed (22, 23) for every layer, biases 0; the tutorial's own Adam,
which adds epsilon after bias correction (Keras adds it before).

Prints the losses of the given steps, each before its update, and for each epoch mean loss and
accuracy of training (of the batches, each before its update) and of the test images.
"""
import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from idx import idx

RECORDS, BATCH, EPOCHS = 5000, 128, 3


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=pathlib.Path, help="folder of IDX files, gzip-compressed or not")
    parser.add_argument("--layers", default="700,500", help="hidden widths")
    parser.add_argument("--steps", default="1,2,3,5,10,20")
    return parser.parse_args()


def records(folder, part):
    images = idx(folder, f"{part}-images")[:RECORDS].reshape(RECORDS, -1)
    return images.astype(np.float32) / np.float32(255), idx(folder, f"{part}-labels")[:RECORDS].astype(np.int64)


def glorot(inputs, outputs):
    limit = tf.sqrt(6.0) / tf.sqrt(tf.cast(inputs + outputs, tf.float32))
    return tf.random.stateless_uniform((inputs, outputs), (22, 23), -limit, limit)


def network(widths):
    return [(tf.Variable(glorot(inputs, outputs)), tf.Variable(tf.zeros(outputs)))
            for inputs, outputs in zip(widths, widths[1:])]


def losses_and_hits(layers, images, labels):
    for weights, bias in layers[:-1]:
        images = tf.nn.relu(images @ weights + bias)
    logits = images @ layers[-1][0] + layers[-1][1]
    hits = tf.argmax(logits, axis=1) == labels
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), hits


class Adam:
    def __init__(self, variables, rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-7):
        self.rate, self.beta1, self.beta2, self.epsilon = rate, beta1, beta2, epsilon
        self.moments = [(variable, tf.Variable(tf.zeros_like(variable)), tf.Variable(tf.zeros_like(variable)))
                        for variable in variables]
        self.steps = 0

    def update(self, gradients):
        self.steps += 1
        for (variable, first, second), gradient in zip(self.moments, gradients):
            first.assign(self.beta1 * first + (1 - self.beta1) * gradient)
            second.assign(self.beta2 * second + (1 - self.beta2) * gradient ** 2)
            corrected = first / (1 - self.beta1 ** self.steps)
            root = tf.sqrt(second / (1 - self.beta2 ** self.steps))
            variable.assign_sub(self.rate * corrected / (root + self.epsilon))


def main():
    a = arguments()
    images, labels = records(a.data, "train")
    test = records(a.data, "t10k")
    layers = network([images.shape[1], *(int(width) for width in a.layers.split(",")), 10])
    variables = [variable for layer in layers for variable in layer]
    adam = Adam(variables)
    wanted = {int(step) for step in a.steps.split(",")}
    print("tensorflow", tf.__version__)
    for _ in range(EPOCHS):
        losses, hits = [], []
        for begin in range(0, RECORDS, BATCH):
            with tf.GradientTape() as tape:
                batch = losses_and_hits(layers, images[begin:begin + BATCH], labels[begin:begin + BATCH])
                loss = tf.reduce_mean(batch[0])
            adam.update(tape.gradient(loss, variables))
            losses += list(batch[0].numpy())
            hits += list(batch[1].numpy())
            if adam.steps in wanted:
                print(f"step {adam.steps}: {loss:.6f}")
        test_losses, test_hits = losses_and_hits(layers, *test)
        figures = (losses, hits, test_losses.numpy(), test_hits.numpy())
        print("epoch:", ", ".join(f"{np.mean(values, dtype=np.float64):.4f}" for values in figures))


if __name__ == "__main__":
    main()
