"""A sentence encoder as teacher of the text tower; needed only for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

LONGEST = 48


@torch.inference_mode()
def embed(folder: Path, texts: Sequence[str], device: torch.device, batch: int = 1024) -> Tensor:
    """Unit vectors (N, E) in float16 of the texts: the mean of the encoder's last states."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = AutoModel.from_pretrained(str(folder)).to(device, dtype).eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out = torch.empty(len(texts), model.config.hidden_size, dtype=torch.float16)
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        inputs = tokenizer(
            [texts[i] for i in places], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        ).to(device)
        states = model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        mean = (states * mask).sum(1) / mask.sum(1)
        out[torch.tensor(places)] = F.normalize(mean, dim=-1).half().cpu()
    return out
