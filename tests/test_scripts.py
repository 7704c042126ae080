"""Scripts outside the package: each says how it is run, and does so with --help."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "scripts", "study/measurements", "tests/gpu")
SCRIPTS = [
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in sorted((ROOT / folder).glob("*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_can_be_imported_and_says_how_it_is_run(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, loaded = ROOT / script, set(sys.modules)
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        assert f"python {script}" in (module.__doc__ or "")
        monkeypatch.setattr("sys.argv", [script, "--help"])
        with pytest.raises(SystemExit) as ended:
            module.main()
    finally:  # modules beside a script have names of their own in each folder
        for name in set(sys.modules) - loaded:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(path.parent)):
                del sys.modules[name]
    assert not ended.value.code
    assert f"usage: {path.name}" in capsys.readouterr().out


def test_all_scripts_are_looked_at() -> None:
    assert len(SCRIPTS) > 20
