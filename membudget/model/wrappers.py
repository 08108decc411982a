"""Multimodal configs: which text model is inside, and how its tensors are named in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from membudget.model.tensors import Tensor

#: How a wrapper renames the text model's tensors.
#: inside: ``language_model.`` before every name.  under: ``language_model.`` behind ``model.``.
#: text_model: ``text_model.`` behind ``model.``.  flat: as they are.
STYLES = {
    "inside": (
        "aria aya_vision gemma3 got_ocr2 internvl kimi_k25 kimi_k3 llama4 llava llava_next llava_next_video "
        "llava_onevision minimax_m3_vl mistral3 mllama nemotron_h_omni paligemma pp_chart2table qianfan_ocr "
        "video_llava vipllava blip-2 instructblip instructblipvideo multi_modality"
    ),
    "under": (
        "apertus1p5 cohere2_vision deepseek_vl deepseek_vl_hybrid gemma3n gemma4 gemma4_unified glm46v glm4v glm4v_moe "
        "glm5_next glm_ocr glmga hyperclovax_vision_v2 janus lfm2_vl lfm3_vl lighton_ocr minicpm_ocr minicpmv4_6 "
        "minicpmv4_7 muse_glimmer muse_spark ovis2 qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe video_llama_3 "
        "moss_transcribe_diarize"
    ),
    "text_model": "granite_docling idefics2 idefics3 smolvlm",
    "language": "deepseek_vl_v2",
}
STYLE_OF = {wrapper: style for style, wrappers in STYLES.items() for wrapper in wrappers.split()}

#: The text model of a wrapper whose text_config names no model_type of its own.
TEXT_TYPES = {
    "apertus1p5": "apertus1p5_text",
    "aria": "aria_text",
    "cohere2_vision": "cohere2",
    "dots3_note": "dots3_note_text",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "emu3": "emu3_text_model",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "got_ocr2": "qwen2",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "ovis2": "qwen2",
    "paligemma": "gemma",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "smolvlm": "llama",
    "video_llava": "llama",
    "vipllava": "llama",
}


#: Wrappers that are a family of their own, and the class whose defaults their text model has.
WHOLE = {"fuyu": "persimmon"}

#: Wrappers whose text model, a whole causal LM inside, goes by its own tie_word_embeddings.
TEXT_TIES = frozenset({"llama4"})

#: Wrappers that tie by their own flag alone, whatever the text model says.
TOP_TIES = frozenset({"gemma3", "gemma3n", "gemma4", "gemma4_unified"})

#: What a config says of parts beside the text model: key -> the part in words.
PARTS = {
    "vision_config": "vision tower",
    "vision_encoder": "vision tower",
    "mm_vision_tower": "vision tower",
    "img_processor": "vision tower",
    "visual": "vision tower",
    "audio_config": "audio tower",
    "audio_encoder": "audio tower",
    "audio_processor": "audio tower",
    "speech_config": "audio tower",
    "talker_config": "talker",
    "token2wav_config": "token2wav",
    "vq_config": "image tokenizer",
    "qformer_config": "Q-Former",
}


def parts(raw: Mapping[str, object]) -> tuple[str, ...]:
    """The parts that the config describes beside the text model, each once."""
    return tuple(dict.fromkeys(part for key, part in PARTS.items() if raw.get(key)))


def rename(tensor: Tensor, wrapper: str) -> Tensor:
    """The tensor under the name that the wrapper's checkpoint gives it."""
    style, name = STYLE_OF.get(wrapper), tensor.name
    if style == "inside":
        return tensor._replace(name=f"language_model.{name}")
    if style == "language":
        return tensor._replace(name=f"language.{name}")
    if style and name.startswith("model."):
        part = "language_model" if style == "under" else style
        return tensor._replace(name=f"model.{part}.{name[6:]}")
    return tensor
