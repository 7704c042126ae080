from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from dca import Classifier, Session, UserError
from dca.core.files import read_json
from dca.model.inputs import as_dataset
from dca.report import page
from dca.report.assemble import make_model_page
from dca.report.page import Section, render
from dca.report.reported_model import ReportedModel, UnseenPredictions, list_held_out, prepare_report
from dca.report.sections import (
    SECTIONS,
    calibration,
    confusion,
    headline,
    labels,
    mistakes,
    next_photos,
    per_class,
    photos,
    prompts,
    provenance,
)
from dca.report.sections import headline as probe
from dca.report.sections.headline import evaluate_linear_probe
from dca.training.evaluate import evaluate_predictions
from report.html_structure import structure

MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def html(tested: ReportedModel) -> str:
    return render(SECTIONS, tested, title=tested.name, about="about")


def test_the_page_is_whole_and_loads_nothing(html: str) -> None:
    found = structure(html)
    assert "script" not in found.tags, "a class name became a tag"
    assert len(set(found.ids)) == len(found.ids)
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert found.images_without_words == 0
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", html)
    assert "url(" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert len(html) < MOST_BYTES


def test_every_section_is_shown_or_left_out_with_a_reason(html: str, held_out: ReportedModel) -> None:
    assert "closed_form learns no prompts." in html
    other = render(SECTIONS, held_out, title="t", about="a")
    for text in (html, other):
        found = structure(text)
        shown = {section.name for section in SECTIONS} & set(found.ids)
        missing = [section.title for section in SECTIONS if section.name not in shown]
        reasons = re.findall(r"<dt>([^<]*)</dt><dd>([^<]{10,})</dd>", text.partition('id="left-out"')[2])
        assert sorted(title for title, _ in reasons) == sorted(missing)


def test_a_model_that_knows_nothing_of_itself_still_has_a_page(
    fitted: Path, tiny_folder: Path, session: Session
) -> None:
    """A trained method without estimate, gallery and data: figures of the run, prompts, and how it was made."""
    model = Classifier.from_pretrained(fitted, backbone=tiny_folder, session=session)
    html = make_model_page(model, "photos.dca", session, folder=fitted)
    assert {"headline", "prompts", "feature_map", "provenance", "left-out"} <= set(structure(html).ids)
    assert "of photos, by the fit" in html
    assert "No predictions for images that the model has not seen" in html


def test_the_headline_is_what_was_measured(tested: ReportedModel, held_out: ReportedModel) -> None:
    assert tested.evaluation is not None
    rows = headline.collect_accuracies(tested)
    main = next(row for row in rows if row.main)
    assert main.share == tested.evaluation.accuracy
    assert main.low <= main.share <= main.high
    assert [row.name for row in rows] == ["zero-shot CLIP", "linear probe", "closed_form", "estimated by the fit"]
    recorded = headline.collect_accuracies(held_out)
    # What the fit has recorded; a linear probe needs the test images.
    assert [(row.share, row.low) for row in recorded] == [(row.share, row.low) for row in (rows[0], *rows[2:])]
    bare = dataclasses.replace(held_out)
    found = held_out.model.estimate_
    assert found is not None
    results, bare.model.results_ = bare.model.results_, {}
    try:
        estimated = headline.collect_accuracies(bare)
    finally:
        bare.model.results_ = results
    assert [(row.share, row.main) for row in estimated] == [(found.zero_shot_accuracy, False), (found.accuracy, True)]


def test_the_headline_needs_no_zero_shot_clip(
    tested: ReportedModel, held_out: ReportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder without text: what is measured now or by the fit comes first all the same."""
    model, found = held_out.model, tested.predictions
    assert found is not None
    assert model.estimate_ is not None
    (target,) = model.results_["targets"]
    results = model.results_ | {"targets": [target | {"zero_shot_accuracy": None}]}
    monkeypatch.setattr(model, "results_", results)
    monkeypatch.setattr(model, "estimate_", dataclasses.replace(model.estimate_, zero_shot_accuracy=None))
    without_text = dataclasses.replace(tested, predictions=dataclasses.replace(found, zero_shot=None))
    own = ["closed_form", "estimated by the fit"]
    for reported, names in ((without_text, ["linear probe", *own]), (held_out, own)):
        rows = headline.collect_accuracies(reported)
        assert [row.name for row in rows] == names
        assert next(row for row in rows if row.main).share == target["accuracy"]
        assert "Zero-shot CLIP" not in render([headline.SECTION], reported, title="t", about="a")
    monkeypatch.setattr(model, "results_", {})
    assert [(row.name, row.main) for row in headline.collect_accuracies(held_out)] == [("closed_form", True)]


def test_the_headline_says_what_the_estimate_cannot_tell(
    held_out: ReportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = held_out.model
    assert model.estimate_ is not None
    monkeypatch.setattr(model, "results_", {})
    monkeypatch.setattr(model, "estimate_", dataclasses.replace(model.estimate_, low=0.2, high=0.9, unmeasured=1))
    html = render([headline.SECTION], held_out, title="t", about="a")
    assert all(caveat in html for caveat in model.estimate_.caveats())
    # Of unequal classes the mean over classes is worth few images, and the interval of zero-shot CLIP says so, too.
    rare = [image for image in model.training_images_ if image.label] + list(model.training_images_[:1])
    before = headline.collect_accuracies(held_out)[0]
    monkeypatch.setattr(model, "training_images_", tuple(rare))
    after = headline.collect_accuracies(held_out)[0]
    assert after.name == "zero-shot CLIP"
    assert after.low < before.low
    assert after.high > before.high


def test_classes_that_cannot_be_measured_are_named_and_the_estimate_is_shown(held_out: ReportedModel) -> None:
    assert held_out.predictions is not None
    assert held_out.model.estimate_ is not None
    label, why = held_out.labels[0], "1 photo: cannot be measured"
    kept = held_out.predictions.truth != 0
    fewer = dataclasses.replace(
        held_out.predictions,
        **{name: getattr(held_out.predictions, name)[kept] for name in ("truth", "predicted", "confidence", "own")},
        missing={0: why},
    )
    changed = dataclasses.replace(held_out, predictions=fewer)
    rows, matrix, sure = per_class.build(changed), confusion.build(changed), calibration.build(changed)
    assert not isinstance(rows, str)
    assert not isinstance(matrix, str)
    assert not isinstance(sure, str)
    assert rows["missing"] == matrix["missing"] == [(label, why)]
    assert rows["untested"] == 0
    assert sure["estimate"] == held_out.model.estimate_.accuracy
    html = render(SECTIONS, changed, title="t", about="a")
    assert html.count(why) == 2


def test_mistakes_are_the_surest_and_show_evidence(tested: ReportedModel, held_out: ReportedModel) -> None:
    values = mistakes.build(tested)
    assert isinstance(values, dict)
    sure = [row["sure"] for row in values["rows"]]
    assert sure == sorted(sure, reverse=True)
    assert all(row["said"] != row["really"] for row in values["rows"])
    assert all(row["heat"].startswith("data:image/jpeg") for row in values["rows"])
    assert all(len(row["near"]) == 3 for row in values["rows"])
    others = mistakes.build(held_out)
    assert isinstance(others, dict)
    assert all(not row["heat"] and row["thumbnail"] for row in others["rows"])


def test_a_mistake_is_a_doubtful_label_where_the_check_of_labels_says_so(
    held_out: ReportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = held_out.predictions
    assert found is not None
    n = found.mistakes[0]
    said = held_out.labels[found.predicted[n]]
    near = [(held_out.training_labels.index(said), 0.9)]
    ratio = float(found.confidence[n] / found.own[n])
    for odds, doubtful in ((0.9 * ratio, True), (1.1 * ratio, False)):
        monkeypatch.setattr(mistakes, "usual_odds", lambda classes, odds=odds: odds)
        assert mistakes._describe_mistake(held_out, found, n, "", near)["doubtful"] == doubtful


def test_an_image_is_not_its_own_neighbour(held_out: ReportedModel) -> None:
    found = held_out.predictions
    assert found is not None
    for n, near in zip(range(5), held_out.nearest(range(5), 3), strict=True):
        assert found.gallery_indices[n] not in [place for place, _ in near]
        assert near[0][1] < 0.99999


def test_a_model_without_gallery_says_so(tested: ReportedModel, hostile_photos: Path) -> None:
    kept, tested.model.gallery_ = tested.model.gallery_, None
    try:
        dataset = as_dataset(hostile_photos, None, for_evaluation=True)
        bare = prepare_report(tested.model, "bare", tested.session, dataset=dataset, data=str(hostile_photos))
        html = render(SECTIONS, bare, title="bare", about="")
    finally:
        tested.model.gallery_ = kept
    structure(html)
    assert "The model has no gallery" in html
    assert "The model has kept no features" in html


def test_labels_next_photos_and_curve(held_out: ReportedModel, tested: ReportedModel) -> None:
    values = labels.build(held_out)
    assert isinstance(values, dict)
    assert all(row["label"] != row["suggested"] for row in values["rows"])
    rows = next_photos.build(tested)
    assert isinstance(rows, dict)
    assert rows["rows"][0]["missed"] + rows["rows"][0]["taken"] > 0
    assert rows["rows"][0]["have"] == 4
    assert rows["basis"] == tested.predictions.basis
    curve = photos.build(tested)
    assert isinstance(curve, dict)
    assert curve["now"].shots == 4
    assert isinstance(prompts.build(tested), str)


def test_the_area_under_the_curve_is_shown_or_where_it_is_known(
    html: str, held_out: ReportedModel, model: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = '<th scope="col">ROC AUC</th>'
    section = [section for section in SECTIONS if section.name == "per_class"]
    assert column in html
    assert "that of a model that has not seen it" not in html
    areas = model.held_out_auc_
    assert len(areas) == 10
    own = render(section, held_out, title="t", about="a")
    assert column in own
    assert all(f"<td>{area:.3f}</td>" in own for area in areas if area is not None)
    assert f"{np.mean([area for area in areas if area is not None]):.3f}" in own
    assert "each with that of a model that has not seen it" in own
    assert "All on 40 training images, each predicted without it" in own
    monkeypatch.setattr(model, "held_out_auc_", ())
    unknown = render(section, held_out, title="t", about="a")
    assert column not in unknown
    assert "is known where classes are those of the fit" in unknown


def test_a_version_is_said_once(tested: ReportedModel) -> None:
    values = provenance.build(tested)
    assert isinstance(values, dict)
    words = dict(values["facts"])["this page"]
    assert [words.count(name) for name in ("dca ", "torch ", "numpy ", "Python ")] == [1, 1, 1, 1]


def test_the_draw_hash_and_the_command_are_those_of_the_run(tested: ReportedModel, model_folder: Path) -> None:
    recorded = read_json(model_folder / "spec.json")
    assert provenance.hash_draw(tested.model.training_images_) == recorded["identity"]["training images"]
    assert provenance.fit_command(recorded["spec"]).startswith("dca fit 'pho'")
    spec = {**recorded["spec"], "method": "dca", "shots": 8, "seed": 3, "options": {"epochs": 5}}
    assert "--method dca --shots 8 --seed 3" in provenance.fit_command(spec)
    assert provenance.fit_command(spec).endswith("--set epochs=5")


def test_a_class_without_images_in_the_data_is_not_said_to_be_missed(tested: ReportedModel) -> None:
    found = tested.predictions
    assert found is not None
    section = [section for section in SECTIONS if section.name == "next_photos"]
    # The first class has no image, and one of the second is taken for it.
    truth, answer = np.where(found.truth == 0, 1, found.truth), np.where(found.truth == 0, 1, found.truth)
    answer[np.flatnonzero(truth == 1)[0]] = 0
    other = dataclasses.replace(tested, predictions=dataclasses.replace(found, truth=truth, predicted=answer))
    html = render(section, other, title="t", about="")
    assert "No image of it among these, 1 wrongly taken for it" in html
    assert "0 of 0" not in html
    assert "dca serve photos.dca --tray FOLDER" in html
    spaced = next_photos.build(dataclasses.replace(other, name="photos", folder=Path("runs/my photos.dca")))
    assert isinstance(spaced, dict)
    assert spaced["model"] == "'my photos.dca'"


def test_the_reasons_for_no_next_photo_say_what_to_do(tested: ReportedModel) -> None:
    found = tested.predictions
    assert found is not None
    assert "fit with --estimate" in next_photos.build(dataclasses.replace(tested, predictions=None))
    perfect = dataclasses.replace(tested, predictions=dataclasses.replace(found, predicted=found.truth))
    words = f"All answers for {found.basis} are right, so no class needs photos more than another."
    assert next_photos.build(perfect) == words


def test_the_linear_probe_is_that_of_the_method(
    tested: ReportedModel, held_out: ReportedModel, hostile_photos: Path, tiny_folder: Path
) -> None:
    right = evaluate_linear_probe(tested)
    assert right is not None
    model = Classifier("linear_probe", backbone=str(tiny_folder), device="cpu", c=0.316)
    assert right.mean() == model.fit(hostile_photos / "train").score(hostile_photos / "test")
    rows = headline.collect_accuracies(tested)
    assert [row.name for row in rows][:3] == ["zero-shot CLIP", "linear probe", tested.model.method_.name]
    assert rows[1].share == right.mean()
    assert evaluate_linear_probe(held_out) is None
    assert headline.PROBE not in [row.name for row in headline.collect_accuracies(held_out)]


def test_no_linear_probe_where_it_would_take_long_or_mislead(
    tested: ReportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tested.evaluation is not None
    other = dataclasses.replace(tested.evaluation, labels=tuple(map(str, range(10))))
    assert evaluate_linear_probe(dataclasses.replace(tested, evaluation=other)) is None
    monkeypatch.setattr(probe, "MOST_PROBE_SIZE", 10)
    assert evaluate_linear_probe(tested) is None


def test_no_mistake_and_no_predictions_are_said(tested: ReportedModel, session: Session) -> None:
    found = tested.predictions
    assert found is not None
    perfect = dataclasses.replace(tested, predictions=dataclasses.replace(found, predicted=found.truth))
    html = render(SECTIONS, perfect, title="t", about="")
    structure(html)
    assert "No mistakes: all answers" in html
    assert "There is no mistake to show." in html


def test_a_page_of_a_hundred_classes_stays_small(tested: ReportedModel) -> None:
    """A thousand mistakes among a hundred classes: the number of images on the page is bounded."""
    found = tested.predictions
    assert found is not None
    rng = np.random.default_rng(0)
    n = 2000
    many = UnseenPredictions(
        True, "images", rng.integers(0, 100, n), rng.integers(0, 100, n), rng.random(n), rng.random(n),
        rng.integers(0, 100, n), ("a/b.png",) * n, tuple(found.images[k % 30] for k in range(n)), (-1,) * n,
    )  # fmt: skip
    assert tested.evaluation is not None
    evaluation = evaluate_predictions(rng.dirichlet(np.ones(100), n), many.truth, [f"class {c}" for c in range(100)])
    subject = dataclasses.replace(tested, predictions=many, evaluation=evaluation)
    names = {"confusion", "per_class", "calibration"}
    html = render([section for section in SECTIONS if section.name in names], subject, title="t", about="")
    found_tags = structure(html)
    assert len(html) < MOST_BYTES / 2
    assert found_tags.tags.count("img") <= 240
    assert "All 100 classes" in html


def test_a_new_section_is_a_function_and_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sections").mkdir()
    (tmp_path / "templates").mkdir()
    (tmp_path / "sections" / "mine.html").write_text("<p>{{ value }}</p>", encoding="utf-8")
    for name in ("page.html", "page.css", "chart.css"):
        (tmp_path / "templates" / name).write_text((page.HERE / "templates" / name).read_text(), encoding="utf-8")
    monkeypatch.setattr(page, "HERE", tmp_path)
    html = render([Section("mine", "Mine", lambda subject: {"value": subject})], "<i>", title="<t>", about="")
    assert "<p>&lt;i&gt;</p>" in html
    assert "<title>&lt;t&gt;</title>" in html


def test_a_missing_jinja2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UserError, match="jinja2"):
        page.require_jinja()


def test_models_without_held_out_predictions_have_none(model: Classifier) -> None:
    images = model.training_images_
    model.training_images_ = tuple(dataclasses.replace(image, held_out=None) for image in images)
    try:
        assert list_held_out(model) is None
    finally:
        model.training_images_ = images
