"""The sections of the page about a model and of the page that compares models, in the order of each page.

A new section is one module and its template.
"""

from __future__ import annotations

from dca.model.comparison import Comparison
from dca.report.page import Section
from dca.report.reported_model import ReportedModel
from dca.report.sections import (
    calibration,
    compared,
    confusion,
    costs,
    data_notes,
    disagreements,
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

COMPARISON_SECTIONS: tuple[Section[Comparison], ...] = (compared.SECTION, disagreements.SECTION, costs.SECTION)
