from __future__ import annotations

import numpy as np

from dca.report.sections.confusion import MOST, cluster_classes
from dca.stats.confusion import count_confusions, order_by_error, select_classes


def counts(size: int, **cells: int) -> np.ndarray:
    """Ten images per class, right but for the given cells: a_b=n."""
    found = np.diag(np.full(size, 10))
    for name, n in cells.items():
        a, b = map(int, name.strip("c").split("_"))
        found[a, b] += n
        found[a, a] -= n
    return found


def test_rows_are_sorted_by_their_share_of_errors() -> None:
    table = counts(4, c2_0=5, c1_3=1)
    assert order_by_error(table) == [2, 1, 0, 3]
    table[3] = 0
    table[:, 3] = 0
    assert order_by_error(table) == [2, 0, 1], "a class that is neither tested nor predicted is left out"


def test_pairs_are_counted_once_in_order() -> None:
    assert count_confusions(counts(4, c2_0=5, c1_3=1, c0_2=3)) == [(2, 0, 5), (0, 2, 3), (1, 3, 1)]


def test_many_classes_are_cut_to_those_that_are_confused() -> None:
    table = counts(40, c30_7=4, c8_31=3, c5_6=9)
    order = order_by_error(table)
    shown = select_classes(order, count_confusions(table), MOST)
    assert len(shown) == MOST
    assert {30, 7, 8, 31, 5, 6} <= set(shown)
    assert shown == [c for c in order if c in shown]
    assert select_classes(order[:5], count_confusions(table), MOST) == order[:5]


def test_confused_classes_stand_together() -> None:
    table = counts(9, c0_4=4, c4_8=3, c1_5=4, c5_7=2)
    chain = cluster_classes(table, order_by_error(table))
    assert sorted(chain) == list(range(9))
    place = {c: n for n, c in enumerate(chain)}
    for group in ((0, 4, 8), (1, 5, 7)):
        where = sorted(place[c] for c in group)
        assert where[-1] - where[0] == 2, chain
