"""Which keys of a checkpoint's configuration we know, so that none is silently ignored.

A key of a configuration file is read, or it is known to change no feature, or the checkpoint is refused by the name of
the key: an unknown key may ask for another mask, another pooling, another norm, and features that ignore it are wrong
without anyone seeing it. A key that only has effect with some values is harmless with the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dca.core.errors import UserError
from dca.core.hints import choose_backbone, combine

# Decides whether a value of a key changes no feature.
Harmless = Callable[[Any], bool]
# Longest value that an error quotes.
LONGEST_QUOTE = 60


def any_value(value: Any) -> bool:
    """For keys that never change a feature of a trained model."""
    return True


def only(*allowed: Any) -> Harmless:
    """For keys that have no effect with these values."""
    return lambda value: any(type(value) is type(other) and value == other for other in allowed)


@dataclass(frozen=True)
class Section:
    """Part of a configuration file.

    name: where it is in the file, "" for its top. values: its content. read: keys that are honoured, or checked by the
    reader. harmless: keys that need not be, each with the values for which that holds.
    """

    name: str
    values: Any
    read: Collection[str]
    harmless: Mapping[str, Harmless]


def refuse_unknown_keys(file: str, sections: Iterable[Section], adapter: str) -> None:
    """Raise one error that lists every key that is neither honoured nor harmless.

    Args:
        file: Name of the file, for the message.
        sections: Its parts.
        adapter: The backbone that does honour them, through the library that wrote the file.

    Raises:
        UserError: With the keys and their values; its way out is the adapter.
    """
    unknown = []
    for section in sections:
        if not isinstance(section.values, Mapping):
            raise UserError(
                f"the configuration is damaged: {section.name or 'the top'} of {file} is no object",
                hint="take the checkpoint's own files",
            )
        prefix = f"{section.name}." if section.name else ""
        for key, value in section.values.items():
            if key not in section.read and not section.harmless.get(key, only())(value):
                unknown.append(f"{prefix}{key}: {_quote(value)}")
    if unknown:
        library = adapter.partition(":")[0]
        raise UserError(
            f"{file} asks for what this reader does not compute, so its features would be wrong",
            details=sorted(unknown),
            hint=combine(f"let {library} run it", choose_backbone(adapter)),
        )


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 4]} ..."


def _any(names: str) -> dict[str, Harmless]:
    return dict.fromkeys(names.split(), any_value)


NOTHING = (None, False, 0, 0.0)

# What `transformers` writes into every configuration, whatever the model: names and versions, types of storage,
# dropout and initial values (training), classes, options of text generation.
HF_ANYWHERE: Mapping[str, Harmless] = {
    **_any("architectures _name_or_path name_or_path _commit_hash transformers_version torch_dtype dtype"),
    **_any("_attn_implementation _attn_implementation_autoset _attn_implementation_internal attn_implementation"),
    **_any("_experts_implementation initializer_range initializer_factor logit_scale_init_value use_cache"),
    **_any("attention_dropout dropout attention_probs_dropout_prob hidden_dropout_prob gradient_checkpointing"),
    **_any("output_attentions output_hidden_states output_scores output_logits return_dict return_dict_in_generate"),
    **_any("id2label label2id num_labels problem_type finetuning_task task_specific_params tokenizer_class prefix"),
    **_any("torchscript use_bfloat16 chunk_size_feed_forward tie_word_embeddings tie_encoder_decoder"),
    **_any("pad_token_id sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id"),
    **_any("bad_words_ids begin_suppress_tokens suppress_tokens cross_attention_hidden_size diversity_penalty"),
    **_any("do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty"),
    **_any("max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences"),
    **_any("remove_invalid_values renormalize_logits repetition_penalty temperature tf_legacy_loss top_k top_p"),
    **_any("typical_p transformers.js_config"),
    "is_decoder": only(False, None),
    "is_encoder_decoder": only(False, None),
    "add_cross_attention": only(False, None),
    "pruned_heads": only({}, None),
    "quantization_config": only(None),
    "auto_map": only(None),
}
HF_TOP: Mapping[str, Harmless] = {**HF_ANYWHERE, **_any("bos_token_id eos_token_id")}
# The size of the joint space is that of the top of the file.
HF_TOWER: Mapping[str, Harmless] = {**HF_ANYWHERE, **_any("projection_dim")}
HF_VISION: Mapping[str, Harmless] = {**HF_TOWER, **_any("bos_token_id eos_token_id"), "num_channels": only(3)}

# open_clip's configurations of models (`CLIPVisionCfg`, `CLIPTextCfg`).
_OPEN_CLIP_TOWER: Mapping[str, Harmless] = {
    "ls_init_value": only(None),
    "block_type": only(None, "default"),
    "qk_norm": only(False),
    "scaled_cosine_attn": only(False),
    "scale_heads": only(False),
    "scale_attn_inner": only(False),
    "scale_attn": only(False),
    "scale_fc": only(False),
    "output_tokens": any_value,
    # Before or after the choice of one row, the norm of this row is the same.
    "final_ln_after_pool": any_value,
}
OPEN_CLIP_TOP: Mapping[str, Harmless] = {
    "init_logit_scale": any_value,
    "init_logit_bias": only(None),
    "nonscalar_logit_scale": any_value,
    "custom_text": only(False),
}
OPEN_CLIP_VISION: Mapping[str, Harmless] = {
    **_OPEN_CLIP_TOWER,
    "patch_dropout": any_value,
    "attentional_pool": only(False),
    **_any("attn_pooler_queries attn_pooler_heads"),  # of attentional_pool
    "no_ln_pre": only(False),
    "pos_embed_type": only("learnable"),
    "pool_type": only("tok"),
    "act_kwargs": only(None, {}),
    "timm_model_name": only(None, ""),
    **_any("timm_model_pretrained timm_pool timm_proj timm_proj_bias timm_drop timm_drop_path"),  # of timm_model_name
    "in_chans": only(3),
}
OPEN_CLIP_TEXT: Mapping[str, Harmless] = {
    **_OPEN_CLIP_TOWER,
    "embed_cls": only(False),
    **_any("pad_id eos_id"),  # of embed_cls, use_pad_mask and pool_type
    "no_causal_mask": only(False),
    "pool_type": only("argmax"),
    "proj_bias": only(False),
    "proj_type": only("linear"),
    "act_kwargs": only(None, {}),
    "hf_model_name": only(None, ""),
    **_any("hf_model_pretrained hf_proj_type hf_pooler_type"),  # of hf_model_name
    "hf_tokenizer_name": only(None, ""),
    "tokenizer_kwargs": only(None, {}),
    "tokenizer_mode": only(None),
}
OPEN_CLIP_PREPROCESS: Mapping[str, Harmless] = {
    "mode": only("RGB"),
    "fill_color": any_value,  # of resize_mode "longest"
}
# Image processors of `transformers`.
HF_PROCESSOR: Mapping[str, Harmless] = {
    **_any("processor_class do_convert_rgb data_format input_data_format return_tensors device disable_grouping"),
    **_any("_valid_processor_keys default_to_square num_channels"),
    "rescale_factor": lambda value: isinstance(value, float) and abs(value * 255 - 1) < 1e-6,
    "do_pad": only(*NOTHING),
    "pad_size": only(None),
    "size_divisor": only(None),
    "crop_pct": only(None),
    "do_thumbnail": only(*NOTHING),
    "do_align_long_axis": only(*NOTHING),
    "offset": only(*NOTHING),
}
