from __future__ import annotations

from dca.datasets.classes import read_class_list


def test_lists_have_a_key_and_a_name_of_every_class() -> None:
    found = read_class_list("imagenet")
    assert len(found) == len({key for key, _ in found}) == 1000
    assert found[0] == ("n01440764", "tench")
    assert all(name.strip() == name != "" for _, name in found)


def test_a_dataset_without_a_list_has_none() -> None:
    assert read_class_list("nowhere") == ()
