#!/usr/bin/env python3
"""Real tables, written as pandas does: Lockstep beside scikit-learn's MLPClassifier.

  scripts/peers/install.sh FOLDER scikit-learn pandas palmerpenguins vega_datasets
  FOLDER/bin/python scripts/peers/tables.py [--folds 5] [--lockstep build/release/lockstep]

For each table: accuracy of 5-fold cross-validation with the same folds, network and numbers of
epochs; and one hash of the weights on 1, 2, 3 and 5 ranks. scikit-learn gets its columns
standardized, one-hot and with means for missing values by its own tools.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import pandas
import vega_datasets
from palmerpenguins import load_penguins
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, EPOCHS, BATCH = 32, 100, 32


def tables():
    """Name, table and column of labels."""
    for name in ("iris", "wine", "breast_cancer", "digits"):
        yield name, getattr(datasets, f"load_{name}")(as_frame=True).frame, "target"
    yield "penguins", load_penguins(), "species"
    cars = vega_datasets.data.cars()
    yield "cars", cars.assign(Year=cars["Year"].astype(str)), "Origin"


def output_of(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def lockstep(a, train, test, label):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        train.to_csv(folder / "train.csv")
        test.to_csv(folder / "test.csv")
        hashes = set()
        for ranks in (1, 2, 3, 5):
            run = folder / f"run-{ranks}"
            output_of(a.lockstep, "train", "--data", folder, "--label-column", label, "--layers", LAYERS, "--epochs",
                      EPOCHS, "--batch-size", BATCH, "--ranks", ranks, "--threads", 1, "--run-dir", run)
            hashes.add(json.loads((run / "summary.json").read_text())["weights_hash"])
        if len(hashes) > 1:
            sys.exit(f"several hashes: {hashes}")
        found = json.loads(output_of(a.lockstep, "evaluate", run, "--data", folder / "test.csv", "--json"))
        test.drop(columns=label).to_csv(folder / "new.csv")
        predicted = folder / "predicted.csv"
        output_of(a.lockstep, "predict", run, "--data", folder / "new.csv", "--output", predicted)
        labels = pandas.read_csv(predicted)["label"].astype(str).to_numpy()
    agrees = (labels == test[label].astype(str).to_numpy()).mean()
    if abs(agrees - found["accuracy"]) > 1e-9:
        sys.exit(f"predictions are right in {agrees}, but evaluate says {found['accuracy']}")
    return found["accuracy"]


def scikit_learn(train, test, label):
    is_number = pandas.api.types.is_numeric_dtype
    few = [name for name in train.columns if is_number(train[name]) or train[name].nunique() <= 100]
    train, test = train[few], test[few]
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    columns = make_column_transformer((numbers, make_column_selector(dtype_include="number")),
                                      (words, make_column_selector(dtype_exclude="number")))
    network = MLPClassifier((LAYERS,), batch_size=BATCH, max_iter=EPOCHS, n_iter_no_change=EPOCHS, alpha=0, random_state=1)
    model = make_pipeline(columns, network)
    model.fit(train.drop(columns=label), train[label])
    return model.score(test.drop(columns=label), test[label])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--lockstep", type=pathlib.Path, default=HERE.parent.parent / "build/release/lockstep")
    a = parser.parse_args()
    print("| table | records | Lockstep | scikit-learn |\n| --- | --- | --- | --- |")
    for name, table, label in tables():
        ours, theirs = [], []
        for train, test in KFold(a.folds, shuffle=True, random_state=1).split(table):
            ours.append(lockstep(a, table.iloc[train], table.iloc[test], label))
            theirs.append(scikit_learn(table.iloc[train], table.iloc[test], label))
        print(f"| {name} | {len(table)} | {statistics.mean(ours):.3f} | {statistics.mean(theirs):.3f} |", flush=True)


if __name__ == "__main__":
    main()
