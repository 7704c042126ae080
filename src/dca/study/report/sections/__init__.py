"""The sections of the report about runs, in the order of the page. A new section is one module."""

from __future__ import annotations

from dca.study.report.sections import (
    ablation,
    base_to_new,
    claims,
    costs,
    curves,
    differences,
    few_shot,
    gamma,
    missing,
    paper_tables,
    provenance,
    seeds,
    sensitivity,
    transductive,
    transfer,
    variants,
)
from dca.study.report.tables import RunsSection

SECTIONS: tuple[RunsSection, ...] = (
    claims.SECTION,
    few_shot.SECTION,
    curves.SECTION,
    differences.SECTION,
    base_to_new.SECTION,
    transfer.SECTION,
    transductive.SECTION,
    paper_tables.SECTION,
    ablation.SECTION,
    sensitivity.SECTION,
    gamma.SECTION,
    seeds.SECTION,
    costs.SECTION,
    variants.SECTION,
    missing.SECTION,
    provenance.SECTION,
)
