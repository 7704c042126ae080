"""The commands and the Python code of the README and the docs run, with a tiny backbone in place of `mini`."""

from __future__ import annotations

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from dca.backbones.sources import ADAPTED, HUB_IDS
from dca.cli import main
from dca.core.errors import UserError
from dca.datasets.sample import write_sample
from dca.methods.base import Method
from dca.methods.registry import all_methods, get_method

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
# Commands that need a network, a public dataset, minutes or a package manager.
# (`task_res` is run by tests/methods/test_outside.py, the datasets' pages by tests/datasets/test_data_docs.py.)
NOT_HERE = re.compile(
    r"^(pip|make|find|curl|docker|python -m|python out|--json|dca (app|demo|datasets|cache|push|serve))\b"
    r"|^python (benchmarks|scripts|study|tests)/"
    r"|--backbone|--web|eurosat/|task_res|methods check my_method|--data ~/datasets|dca study select"
)
QUICK = ("--set", "epochs=1", "--set", "warmup_epochs=0")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def commands(page: str) -> list[str]:
    """Lines of shell blocks, and lines of other blocks that begin with dca; what is behind two spaces explains them."""
    shell = [line for block in blocks(page, "sh") for line in block.splitlines()]
    text = re.sub(r"```\w+\n.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    plain = [line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    lines = [*shell, *(line for line in plain if line.startswith("dca "))]
    return [re.split(r"  +| #", line.strip())[0] for line in lines if line.strip()]


def run_command(command: str) -> None:
    """Run a command; a fit is made short, and replaces a model that an earlier command made."""
    program, *arguments = shlex.split(command)
    if program == "python":
        exec(arguments[1], {})
        return
    assert program == "dca"
    if "--hold-out" in arguments:  # is for photos without a test part
        arguments = ["photos/train/" if argument == "photos/" else argument for argument in arguments]
    if "photos.dca" in arguments and not Path("photos.dca").exists():
        assert main(["fit", "photos/"]) == 0
    if "--corrections" in arguments:  # what a server would have written
        folder = Path("photos.dca/corrections/dog")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile("photos/test/dog/1.png", folder / "1.png")
    assert main([*arguments, *extra(arguments)]) == 0, command


def extra(arguments: list[str]) -> list[str]:
    """Options that make a fit short, and that replace an earlier one."""
    if arguments[0] != "fit" and arguments[:2] != ["study", "run"]:
        return []
    named = [value for flag, value in pairwise(arguments) if flag in ("--method", "--with")]
    trained = [name for name in named if get_method(name).trains_on != "nothing"]
    quick = [] if not trained or "epochs=" in " ".join(arguments) else [*QUICK]
    quick += ["--set", "folds=2"] if "--with" in arguments else []
    target = arguments[arguments.index("-o") + 1] if "-o" in arguments else f"{arguments[1].rstrip('/')}.dca"
    return [*quick, *(["--overwrite"] if Path(target).exists() and "--overwrite" not in arguments else [])]


# A cell with a measured value: a number with decimals, alone or with what follows it, or a percentage.
FIGURE = re.compile(r"^\**[-+−]?\d+\.\d+\b(?!\.)|\d %$")
MADE_BY = re.compile(r"python (-m )?[\w/]+|dca (study|eval|bench|compare)\b|<!-- (\w+: )?[\w/]+\.py")
MEASURED_PAGES = [*PAGES, "study/README.md", "src/dca/backbones/mini/README.md"]


def sections(page: str) -> list[str]:
    """The parts of a page from heading to heading; a # in a block of code is no heading."""
    text = re.sub(r"```.*?```", lambda block: block.group().replace("\n#", "\n"), page, flags=re.DOTALL)
    return re.split(r"^(?=#+ )", text, flags=re.MULTILINE)


def has_figures(section: str) -> bool:
    """Whether a section has a table of measured values: more than two cells of it are figures."""
    tables = re.findall(r"(?:^ *\|.*\n?)+", section, re.MULTILINE)
    return any(sum(bool(FIGURE.search(cell.strip())) for cell in table.split("|")) > 2 for table in tables)


def unnamed_tables(page: str) -> list[str]:
    """The headings of sections that have a table of figures and name no command that makes it."""
    return [part.splitlines()[0] for part in sections(page) if has_figures(part) and not MADE_BY.search(part)]


@pytest.mark.parametrize("page", MEASURED_PAGES)
def test_every_table_of_figures_names_its_command(page: str) -> None:
    assert unnamed_tables((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_table_of_figures_without_a_command_is_found() -> None:
    table = "| a | b |\n|---|---:|\n| x | 71.5 |\n| y | 60.1 ± 0.2 |\n| z | +1.0 [+0.2, +1.8] |\n"
    command = "```sh\n# how\npython study/measurements/x.py DATA\n```\n"
    assert unnamed_tables(f"# One\n\n{table}\n## Two\n\n{command}") == ["# One"]
    assert unnamed_tables(f"# One\n\n{table}\n{command}") == []
    assert unnamed_tables("# Files\n\n| a.1.csv | 2 |\n|---|---|\n| b | 0 |\n| 4 | 8 |\n") == []


@pytest.fixture(scope="module")
def many_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many images per class as `--reject 0.05` takes with two classes: copies would count once."""
    return write_sample(tmp_path_factory.mktemp("many") / "photos", per_class_train=16, per_class_test=2, size=48)


@pytest.fixture
def desk(tmp_path: Path, many_photos: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages mention, and the tiny backbone in place of the embedded one."""
    for split in ("train", "test"):
        for name, source in (("cat", "fish"), ("dog", "house")):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for n, image in enumerate(sorted((many_photos / split / source).iterdir())):
                shutil.copyfile(image, folder / f"{n}.png")
    shutil.copytree(tmp_path / "photos" / "test", tmp_path / "more_photos")
    shutil.copytree(many_photos / "train" / "guitar", tmp_path / "other")
    shutil.copytree(tmp_path / "photos" / "train", tmp_path / "sorted")
    for name in ("zebras", "holiday"):
        shutil.copytree(tmp_path / "photos" / "test" / "dog", tmp_path / name)
    for name in ("new.jpg", "a.jpg", "b.jpg"):
        shutil.copyfile(tmp_path / "photos" / "test" / "cat" / "0.png", tmp_path / name)
    grid = f'[[grid]]\nmethod = ["zero_shot", "gda"]\ndata = "photos/"\nshots = 1\nbackbone = "{tiny_folder}"\n'
    (tmp_path / "my.toml").write_text(grid, encoding="utf-8")
    monkeypatch.setattr("dca.backbones.sources.mini_folder", lambda: tiny_folder)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(page: str) -> list[str]:
    """The commands of a page that can be run here."""
    return [command for command in commands(page) if not NOT_HERE.search(command)]


def mark_long(page: str) -> object:
    """A page as a parameter; one that exports several times takes long."""
    return pytest.param(page, marks=[pytest.mark.slow] if page == "docs/export.md" else [])


@pytest.mark.parametrize("page", [mark_long(page) for page in PAGES if typed(page)])
def test_commands_of_the_page_work(page: str, desk: Path) -> None:
    for command in typed(page):
        run_command(command)


def test_enough_commands_are_run() -> None:
    assert {page for page in PAGES if len(typed(page)) >= 3} >= {
        *("README.md", "docs/quickstart.md", "docs/export.md", "docs/faq.md", "docs/your-own-images.md"),
        *("docs/methods.md", "docs/choose-a-method.md", "docs/tour-photos.md", "docs/tour-research.md"),
        "docs/examples.md",
    }


def test_python_of_the_readme_runs(desk: Path) -> None:
    (block,) = blocks("README.md", "python")
    block = block.replace("seed=1)", "seed=1, epochs=2)")
    names: dict[str, object] = {}
    exec(block, names)
    model = names["model"]
    assert list(model.classes_) == ["cat", "dog"]  # type: ignore[attr-defined]


def test_python_of_the_quickstart_runs(desk: Path, photos: Path) -> None:
    shutil.copytree(photos, desk / "images")
    (block,) = blocks("docs/quickstart.md", "python")
    names: dict[str, object] = {}
    exec(block, names)
    assert names["numbered"].classes_.tolist() == [0, 1]  # type: ignore[attr-defined]


# Those of the README, the quickstart and the page about reports have tests of their own here, others in
# tests/methods/test_outside.py and tests/datasets/test_data_docs.py; the code in the page about export needs the hub.
ELSEWHERE = {
    *("README.md", "docs/quickstart.md", "docs/add-a-method.md", "docs/datasets.md", "docs/protocols.md"),
    *("docs/your-own-images.md", "docs/export.md", "docs/report.md"),
}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE and blocks(page, "python")])
def test_python_of_the_page_runs(page: str, desk: Path) -> None:
    """Its blocks follow each other in one program."""
    if "photos.dca" in "".join(blocks(page, "python")):
        assert main(["fit", "photos/"]) == 0
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(block, names)


def test_python_of_the_page_about_reports_runs(desk: Path) -> None:
    assert main(["fit", "photos/", "-q"]) == 0
    (block,) = blocks("docs/report.md", "python")
    exec(block, {})
    assert "<title>photos</title>" in (desk / "page.html").read_text(encoding="utf-8")
    assert (desk / "why.png").stat().st_size > 1000


def test_makefile_has_the_targets_that_pages_name() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {c.split()[1] for page in [*PAGES, "CONTRIBUTING.md"] for c in commands(page) if c.startswith("make ")}
    assert named >= {"demo", "test"}
    assert [target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_backbones_that_pages_name_exist() -> None:
    text = "\n".join(c for page in PAGES for c in commands(page))
    named = set(re.findall(r"--backbone ([\w-]+)(?=\s|$)", text))
    assert named
    assert named <= {*HUB_IDS, *ADAPTED, "mini"}


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [t for t in targets if not ((ROOT / page).parent / t).exists()] == []


def test_settings_that_are_said_to_be_the_authors_exist() -> None:
    """Every `--set NAME=VALUE` of the list of differences is understood by the methods of its line."""
    page = (ROOT / "docs/methods-research.md").read_text(encoding="utf-8")
    section = page.split("## Differences from the authors' code")[1].split("\n## ")[0]
    methods = {
        "Tip-Adapter-F": "tip_adapter_f",
        "CLAP": "clap",
        "DAPT": "dapt",
        "Cross-Modal": "cross_modal",
        "DCA": "dca",
        "ProLIP": "prolip",
        "2SFS": "two_sfs",
        "LAMM": "lamm",
        "VPT": "vpt",
        "ProKeR": "proker",
        "LP++": "lp_plus_plus",
    }
    given = []
    for line in section.split("\n- ")[1:]:
        text = " ".join(line.split())
        names = [name for words, name in methods.items() if words in text.split("(")[0]]
        for setting in re.findall(r"--set (\w+=[\w./^]+)", text):
            kinds = [get_method(name) for name in names or ["tip_adapter_f"]]
            assert any(_understood(kind, setting) for kind in kinds), (names, setting)
            given.append(setting)
    wanted = {"prototypes=augmented", "init=random", "search=grid", "names=raw", "crop_low=0.08", "reading=printed"}
    assert wanted <= {*given}


def test_the_table_of_recipes_by_protocol_is_complete() -> None:
    page = (ROOT / "docs/methods-research.md").read_text(encoding="utf-8")
    rows = re.findall(r"^  \| `(\w+)` \| ([\w, -]+) \| .* \| (.*) \|$", page, re.MULTILINE)
    listed = {(name, protocol): source for name, protocols, source in rows for protocol in protocols.split(", ")}
    recipes = {(n, p): own for n, kind in all_methods().items() for p, own in kind.protocol_options.items()}
    assert listed.keys() == recipes.keys()
    for key, own in recipes.items():
        ends = [end for end in re.findall(r"`\.*([^`]+)`", listed[key]) if own.source.endswith(end)]
        assert ends, (key, own.source)


def test_the_table_of_changed_classes_names_every_method_once() -> None:
    page = (ROOT / "docs/your-own-images.md").read_text(encoding="utf-8")
    table = page.split("| method | add a class | remove a class | change its name |")[1].split("\n\n")[0]
    heads = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = [name for head in heads for name in re.findall(r"`(\w+)`", head)]
    assert sorted(named) == sorted(all_methods())


def _understood(kind: type[Method], setting: str) -> bool:
    try:
        kind.parse_options([setting])
    except UserError:
        return False
    return True
