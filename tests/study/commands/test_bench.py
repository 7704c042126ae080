"""dca study bench: our figures beside the reference, which computes the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dca.backbones.clip import CLIP
from dca.cli import main
from dca.study.bench import (
    Result,
    _operations,
    batch_of,
    estimate_floor_ms,
    make_names,
    measure,
    measure_head,
    measure_steps,
    measure_text,
    method_of,
    usual_method,
)
from dca.training.loop import compute_gradients

CPU = torch.device("cpu")


def test_the_usual_step_computes_the_same(clip: CLIP) -> None:
    method, batch = method_of(clip, 5), batch_of(clip, 5, 3)
    ours = compute_gradients(method, batch)
    found = [parameter.grad.clone() for parameter in method.parameters()]
    usual = compute_gradients(usual_method(method), batch)
    for name, term in ours.terms.items():
        torch.testing.assert_close(usual.terms[name], term, rtol=1e-4, atol=1e-6)
    for parameter, gradient in zip(method.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)


def test_steps_are_compared(clip: CLIP) -> None:
    results = list(measure_steps(clip, [3, 4], [2], compare=True))
    assert [result.name for result in results] == ["step, 3 classes, batch 2", "step, 4 classes, batch 2"]
    for result in results:
        assert result.gap is not None
        assert result.gap < 1e-4
        assert result.reference_ms is not None
        assert result.to_dict()["ratio"] == result.reference_ms / result.ours_ms


def test_text_and_head_are_compared(clip: CLIP) -> None:
    text = measure_text(clip, 4)
    assert text.gap is not None
    assert text.gap < 1e-4
    head = measure_head(CPU, classes=6, shots=4, images=5)
    assert head.gap is not None
    assert head.gap < 1e-3
    assert head.memory is not None
    assert head.reference_memory is not None
    assert head.memory < head.reference_memory / 20


def test_the_floor_counts_the_products(clip: CLIP) -> None:
    """Twice the batch and twice the classes are less than twice the floor, since the other tower stays."""
    one, classes, images = (estimate_floor_ms(method_of(clip, c), b) for c, b in ((50, 8), (90, 8), (50, 16)))
    assert one < classes < 2 * one
    assert one < images < 2 * one
    text = 2 * _operations(clip.config.text, 7, 3.0)
    width, hidden, layers = clip.config.text.width, clip.config.text.hidden, clip.config.text.layers
    assert text == 2 * layers * 7 * (2 * (4 * width**2 + 2 * width * hidden) + 4 * 3 * width)


def test_names_differ() -> None:
    assert make_names(2500)[:3] == make_names(3)
    assert make_names(1002)[1000:] == tuple(f"{name} 1" for name in make_names(2))


def test_measure_takes_the_median() -> None:
    calls: list[int] = []
    cost = measure(lambda: calls.append(1), CPU, repeats=4, warm_up=2)
    assert len(calls) == 6
    assert cost.ms >= 0
    assert cost.memory is None
    assert Result("alone", 2.0).to_dict()["ratio"] is None


def test_bench_prints_json(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "study",
        "bench",
        "step",
        "--classes",
        "3",
        "--batch",
        "2",
        "--backbone",
        str(tiny_folder),
        "--device",
        "cpu",
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "ours_ms", "reference_ms", "ratio", "memory"} <= set(found["results"][0])
    assert main(arguments) == 0
    assert "step, 3 classes, batch 2" in capsys.readouterr().out


def test_bench_times_commands(tiny_folder: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--backbone", str(tiny_folder), "--device", "cpu", "--json"]
    assert main(["study", "bench", "eval", str(photos), "--images", "8", *common]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["name"].startswith("eval, 8 images")
    assert main(["study", "bench", "fit", str(photos), "--epochs", "1", "--shots", "1", *common]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["ours_ms"] > 0


def test_wrong_numbers_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "bench", "step", "--classes", "ten"]) == 2
    assert "'ten' is not a list of whole numbers" in capsys.readouterr().err
