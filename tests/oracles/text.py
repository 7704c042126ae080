"""The plain text route: every sequence padded to the full context, every row through every layer."""

from __future__ import annotations

import torch
from torch import Tensor

from dca.backbones.clip import CLIP


def encode_padded(clip: CLIP, embedded: Tensor, eot: Tensor) -> Tensor:
    """embedded: (N, T, W) token embeddings without positions; eot: (N,) row of EOT. Returns (N, D)."""
    tower = clip.text
    x = embedded + tower.positions[: embedded.shape[1]]
    T = x.shape[1]
    mask = torch.full((T, T), float("-inf"), dtype=x.dtype).triu(1)
    for block in tower.blocks:
        h = block.ln_1(x)
        q, k, v = (part.unflatten(-1, (block.attn.heads, -1)) for part in block.attn.qkv(h).chunk(3, dim=-1))
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k) / q.shape[-1] ** 0.5 + mask
        mixed = torch.einsum("nhqk,nkhd->nqhd", scores.softmax(-1), v).flatten(-2)
        x = x + block.attn.out(mixed)
        x = x + block.mlp(block.ln_2(x))
    rows = x[torch.arange(len(x)), eot]
    return tower.projection(tower.ln_final(rows))


def encode_prompts_padded(clip: CLIP, contexts: list[Tensor], names: list[list[int]]) -> Tensor:
    """Every class under every context, each sequence written out to the full context length: (M, C, D)."""
    config = clip.config.text
    features = []
    for context in contexts:
        sequences, ends = [], []
        for c, ids in enumerate(names):
            own = context if context.dim() == 2 else context[c]
            sos = clip.text.embedding(torch.tensor([config.sot_id]))
            tail = clip.text.embedding(torch.tensor(ids))
            pad = config.context_length - 1 - len(own) - len(ids)
            padding = clip.text.embedding(torch.zeros(pad, dtype=torch.long))
            sequences.append(torch.cat([sos, own, tail, padding]))
            ends.append(len(own) + len(ids))
        features.append(encode_padded(clip, torch.stack(sequences), torch.tensor(ends)))
    return torch.stack(features)


def encode_sequences_padded(clip: CLIP, sequences: list[Tensor]) -> Tensor:
    """Unit features (N, D) of embedded sequences (T_i, W), SOS to EOT, each padded to the full context."""
    room = clip.config.text.context_length
    filler = clip.text.embedding.weight[0]
    padded = [torch.cat([s, filler.expand(room - len(s), -1)]) for s in sequences]
    features = encode_padded(clip, torch.stack(padded), torch.tensor([len(s) - 1 for s in sequences]))
    return features / features.square().sum(dim=-1, keepdim=True).sqrt()
