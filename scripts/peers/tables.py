#!/usr/bin/env python3
"""Real tables, written as pandas does: Lockstep beside scikit-learn's MLPClassifier and MLPRegressor.

  scripts/peers/install.sh FOLDER scikit-learn pandas palmerpenguins vega_datasets
  FOLDER/bin/python scripts/peers/tables.py [--folds 5] [--seeds 3] [--lockstep build/release/lockstep]

For each table: accuracy, or R2, of 5-fold cross-validation with the same folds, network and numbers
of epochs; and one hash of the weights on 1, 2, 3 and 5 ranks. scikit-learn gets its columns
standardized, one-hot and with means for missing values by its own tools. R2 is that of the
predictions of all folds together, the mean over the columns: a fold of linnerud has four records.
Figures are means over seeds of the first weights, and their standard deviation.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import numpy
import pandas
import vega_datasets
from compare import LOCKSTEP, output_of
from palmerpenguins import load_penguins
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

LAYERS, EPOCHS, BATCH = 32, 100, 32


def tables():
    """Name, table, and the column of labels or columns of numbers to predict."""
    for name in ("iris", "wine", "breast_cancer", "digits"):
        yield name, getattr(datasets, f"load_{name}")(as_frame=True).frame, ["target"]
    yield "penguins", load_penguins(), ["species"]
    cars = vega_datasets.data.cars()
    yield "cars", cars.assign(Year=cars["Year"].astype(str)), ["Origin"]
    yield "diabetes", datasets.load_diabetes(as_frame=True, scaled=False).frame, ["target"]
    yield "linnerud", datasets.load_linnerud(as_frame=True).frame, ["Weight", "Waist", "Pulse"]


def is_regression(name):
    return name in ("diabetes", "linnerud")


def lockstep(a, name, train, test, labels, seed):
    """The predictions for the test set."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        train.to_csv(folder / "train.csv")
        test.to_csv(folder / "test.csv")
        hashes = set()
        for ranks in (1, 2, 3, 5) if seed == 1 else (1,):
            run = folder / f"run-{ranks}"
            output_of([a.lockstep, "train", "--data", folder, "--label-column", ",".join(labels), "--layers", LAYERS, "--epochs",
                       EPOCHS, "--batch-size", BATCH, "--seed", seed, "--ranks", ranks, "--threads", 1, "--run-dir", run])
            hashes.add(json.loads((run / "summary.json").read_text())["weights_hash"])
        if len(hashes) > 1:
            sys.exit(f"several hashes: {hashes}")
        found = json.loads(output_of([a.lockstep, "evaluate", run, "--data", folder / "test.csv", "--json"]))
        test.drop(columns=labels).to_csv(folder / "new.csv")
        predicted = folder / "predicted.csv"
        output_of([a.lockstep, "predict", run, "--data", folder / "new.csv", "--output", predicted])
        table = pandas.read_csv(predicted)
    if is_regression(name):
        values = table[labels].to_numpy()
        score = r2_score(test[labels], values)
    else:
        values = table[["label"]].astype(test[labels[0]].dtype).to_numpy()
        score = accuracy_score(test[labels], values)
    evaluated = found["r2" if is_regression(name) else "accuracy"]
    if abs(score - evaluated) > 1e-5:
        sys.exit(f"{name}: predictions score {score}, but evaluate says {evaluated}")
    return values


def scikit_learn(name, train, test, labels, seed):
    """The predictions for the test set."""
    is_number = pandas.api.types.is_numeric_dtype
    few = [name for name in train.columns if is_number(train[name]) or train[name].nunique() <= 100]
    train, test = train[few], test[few]
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    columns = make_column_transformer((numbers, make_column_selector(dtype_include="number")),
                                      (words, make_column_selector(dtype_exclude="number")))
    kind = MLPRegressor if is_regression(name) else MLPClassifier
    network = kind(hidden_layer_sizes=(LAYERS,), batch_size=min(BATCH, len(train)), max_iter=EPOCHS, n_iter_no_change=EPOCHS, alpha=0,
                   random_state=seed)
    model = make_pipeline(columns, network)
    if is_regression(name):
        model = TransformedTargetRegressor(model, transformer=StandardScaler())
    model.fit(train.drop(columns=labels), train[labels].to_numpy() if is_regression(name) else train[labels[0]])
    return model.predict(test.drop(columns=labels)).reshape(len(test), -1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lockstep", type=pathlib.Path, default=LOCKSTEP)
    a = parser.parse_args()
    print("| table | records | score | Lockstep | scikit-learn |\n| --- | --- | --- | --- | --- |")
    for name, table, labels in tables():
        score = r2_score if is_regression(name) else accuracy_score
        folds = [(table.iloc[train], table.iloc[test])
                 for train, test in KFold(a.folds, shuffle=True, random_state=1).split(table)]
        true = numpy.concatenate([test[labels].to_numpy() for _, test in folds])
        ours, theirs = [], []
        for seed in range(1, a.seeds + 1):
            ours.append(score(true, numpy.concatenate(
                [lockstep(a, name, train, test, labels, seed) for train, test in folds])))
            theirs.append(score(true, numpy.concatenate(
                [scikit_learn(name, train, test, labels, seed) for train, test in folds])))
        figures = [f"{numpy.mean(found):.3f} ({numpy.std(found):.3f})" for found in (ours, theirs)]
        print(f"| {name} | {len(table)} | {'R2' if is_regression(name) else 'accuracy'} | {figures[0]} | "
              f"{figures[1]} |", flush=True)


if __name__ == "__main__":
    main()
