"""The tutorial's training run in JAX: python jax_peer.py --data DIR, one process with XLA's threads.

The whole step is one compiled program that slices the batch from an array in memory and updates
weights and moments in place.
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from peer import (EPSILON, RATE, SEED, Clock, arguments, batch_starts, digits, timed_checkpoint,
                  timed_evaluation, widths)


def first_weights(sizes):
    rng = np.random.default_rng(SEED)
    weights = []
    for n_in, n_out in zip(sizes, sizes[1:]):
        limit = np.sqrt(6 / (n_in + n_out))
        weights.append((jnp.asarray(rng.uniform(-limit, limit, (n_in, n_out)), jnp.float32),
                        jnp.zeros(n_out, jnp.float32)))
    return weights


def logits_of(weights, x):
    for w, b in weights[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = weights[-1]
    return x @ w + b


def loss_of(weights, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(weights, x), y).mean()


@jax.jit
def correct(weights, x, y):
    return (logits_of(weights, x).argmax(1) == y).sum()


def save(path, weights, state):
    np.savez(path, *(np.asarray(value) for value in jax.tree.leaves((weights, state))))


def main():
    a = arguments()
    x, y = digits(a)
    x, y = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    weights = first_weights(widths(a))
    adam = optax.adam(RATE, eps=EPSILON)
    state = adam.init(weights)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, state, x, y, start):
        batch = [jax.lax.dynamic_slice_in_dim(v, start, a.batch_size) for v in (x, y)]
        loss, gradients = jax.value_and_grad(loss_of)(weights, *batch)
        updates, state = adam.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    clock = Clock(a)
    for start in batch_starts(a, len(x)):
        weights, state, loss = step(weights, state, x, y, start)
        loss.block_until_ready()
        clock.mark()
    clock.report(loss, {**timed_evaluation(a, functools.partial(correct, weights)),
                        **timed_checkpoint(lambda path: save(path, weights, state))})


if __name__ == "__main__":
    main()
