from __future__ import annotations

from pathlib import Path

from dca import Classifier, Session
from dca.model.comparison import compare
from dca.model.inputs import as_dataset
from dca.report.assemble import make_comparison_page
from dca.report.reported_model import to_zero_shot
from report.html_structure import structure


def test_the_page_shows_differences_and_images(model: Classifier, hostile_photos: Path, session: Session) -> None:
    dataset = as_dataset(hostile_photos, None, for_evaluation=True)
    found = compare([("<b>mine", model), ("zero", to_zero_shot(model))], dataset)
    html = make_comparison_page(found)
    tags = structure(html)
    assert "script" not in tags.tags
    assert "b" not in tags.tags
    assert {"compared", "disagreements", "costs"} <= set(tags.ids)
    assert "Tango" in html
    assert tags.tags.count("img") > 0
    same = make_comparison_page(compare([("a", model), ("b", model)], dataset))
    assert "The models give the same answer for every image." in same
