from __future__ import annotations

import pytest

from dca.datasets import catalog
from dca.methods.clap import UNDERSCORED, raw_name


def split_file_name(key: str, name: str, dataset: str) -> str:
    """The twin: the name that CoOp's split files have, from the key of the class, which keeps its underscores."""
    if dataset == "sun397":
        return " ".join(key.split("/")[:0:-1])
    return key.lower() if dataset == "oxford_pets" else key if "_" in key else name


@pytest.mark.parametrize("dataset", sorted(UNDERSCORED))
def test_raw_names_are_those_of_the_split_files(dataset: str) -> None:
    classes = catalog.get(dataset).class_list()
    assert classes
    for key, name in classes:
        assert raw_name(name, dataset) == split_file_name(key, name, dataset)


def test_other_names_stay_as_they_are() -> None:
    for dataset in sorted({*catalog.entries()} - UNDERSCORED):
        for key, name in catalog.get(dataset).class_list():
            assert raw_name(name, dataset) == name
            assert "_" not in key or key != name
    assert raw_name("my own class", "") == "my own class"
