from __future__ import annotations

import pytest
import torch

from dca.core.device import SHARED_FROM, compute_dtype, limit_threads, require_device, resolve_device
from dca.core.errors import UserError


def test_auto_is_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch):
    for there, device, dtype in ((True, "cuda", torch.bfloat16), (False, "cpu", torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert resolve_device("auto").type == device
        assert compute_dtype(resolve_device("auto"), "auto") == dtype


def test_a_device_that_is_not_here_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device 'cuda:7' cannot be used: no CUDA device here") as caught:
        resolve_device("cuda:7")
    assert caught.value.hint == "use device='auto' or 'cpu'"
    assert caught.value.render("cli").endswith("fix: use --device auto or cpu")
    with pytest.raises(UserError, match="device 'gpu' cannot be used"):
        resolve_device("gpu")


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="unknown precision 'fp8'") as caught:
        require_device("cpu", "fp8")
    assert caught.value.render("cli").endswith("fix: use --precision auto, fp32 or bf16")
    assert compute_dtype(torch.device("cpu"), "bf16") == torch.bfloat16


@pytest.mark.parametrize(("multiplications", "expected"), [(SHARED_FROM - 1, 1), (SHARED_FROM, 2)])
def test_small_products_take_one_thread(multiplications: int, expected: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with limit_threads(multiplications):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
