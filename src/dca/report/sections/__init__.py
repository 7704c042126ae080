"""The sections of the page about a model, in the order of the page. A new section is one module and its template."""

from __future__ import annotations

from dca.report.page import Section
from dca.report.reported_model import ReportedModel
from dca.report.sections import (
    calibration,
    confusion,
    data_notes,
    feature_map,
    headline,
    labels,
    mistakes,
    next_photos,
    per_class,
    photos,
    prompts,
    provenance,
)

SECTIONS: tuple[Section[ReportedModel], ...] = (
    headline.SECTION,
    mistakes.SECTION,
    confusion.SECTION,
    per_class.SECTION,
    calibration.SECTION,
    photos.SECTION,
    feature_map.SECTION,
    labels.SECTION,
    prompts.SECTION,
    next_photos.SECTION,
    data_notes.SECTION,
    provenance.SECTION,
)
