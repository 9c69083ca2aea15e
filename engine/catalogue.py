"""Models that people ask for, by short names. Data; whether they are on this machine is asked here.

Sizes are parameters as the authors count them. Licences are those of the weights; a gated model
asks for consent on huggingface.co first.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.files import user_path


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One model and its short name.

    Attributes:
        alias: the short name.
        id: on the Hugging Face Hub.
        model_type: its family, a key of `engine.families.FAMILIES`.
        size: parameters.
        licence: of the weights.
    """

    alias: str
    id: str
    model_type: str
    size: str
    licence: str


MODELS = (
    KnownModel("smolvlm", "HuggingFaceTB/SmolVLM-Instruct", "idefics3", "2.2B", "Apache-2.0"),
    KnownModel(
        "smolvlm-256m", "HuggingFaceTB/SmolVLM-256M-Instruct", "idefics3", "0.3B", "Apache-2.0"
    ),
    KnownModel(
        "smolvlm-500m", "HuggingFaceTB/SmolVLM-500M-Instruct", "idefics3", "0.5B", "Apache-2.0"
    ),
    KnownModel("smolvlm2", "HuggingFaceTB/SmolVLM2-2.2B-Instruct", "smolvlm", "2.2B", "Apache-2.0"),
    KnownModel("qwen2-vl-2b", "Qwen/Qwen2-VL-2B-Instruct", "qwen2_vl", "2.2B", "Apache-2.0"),
    KnownModel("qwen2-vl-7b", "Qwen/Qwen2-VL-7B-Instruct", "qwen2_vl", "8.3B", "Apache-2.0"),
    KnownModel(
        "qwen2.5-vl-3b", "Qwen/Qwen2.5-VL-3B-Instruct", "qwen2_5_vl", "3.8B", "Qwen Research"
    ),
    KnownModel("qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl", "8.3B", "Apache-2.0"),
    KnownModel("qwen2.5-vl-32b", "Qwen/Qwen2.5-VL-32B-Instruct", "qwen2_5_vl", "33B", "Apache-2.0"),
    KnownModel("qwen3-vl-2b", "Qwen/Qwen3-VL-2B-Instruct", "qwen3_vl", "2.1B", "Apache-2.0"),
    KnownModel("qwen3-vl-4b", "Qwen/Qwen3-VL-4B-Instruct", "qwen3_vl", "4.4B", "Apache-2.0"),
    KnownModel("qwen3-vl-8b", "Qwen/Qwen3-VL-8B-Instruct", "qwen3_vl", "8.8B", "Apache-2.0"),
    KnownModel("llava-1.5-7b", "llava-hf/llava-1.5-7b-hf", "llava", "7.1B", "Llama 2"),
    KnownModel("llava-1.5-13b", "llava-hf/llava-1.5-13b-hf", "llava", "13B", "Llama 2"),
    KnownModel(
        "llava-1.6-7b", "llava-hf/llava-v1.6-mistral-7b-hf", "llava_next", "7.6B", "Apache-2.0"
    ),
    KnownModel(
        "llava-1.6-13b", "llava-hf/llava-v1.6-vicuna-13b-hf", "llava_next", "13B", "Llama 2"
    ),
    KnownModel(
        "llava-onevision-0.5b",
        "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
        "llava_onevision",
        "0.9B",
        "Apache-2.0",
    ),
    KnownModel(
        "llava-onevision-7b",
        "llava-hf/llava-onevision-qwen2-7b-ov-hf",
        "llava_onevision",
        "8.0B",
        "Apache-2.0",
    ),
    KnownModel("gemma-3-4b", "google/gemma-3-4b-it", "gemma3", "4.3B", "Gemma, gated"),
    KnownModel("gemma-3-12b", "google/gemma-3-12b-it", "gemma3", "12B", "Gemma, gated"),
    KnownModel("paligemma-3b", "google/paligemma-3b-mix-224", "paligemma", "2.9B", "Gemma, gated"),
    KnownModel(
        "paligemma2-3b", "google/paligemma2-3b-mix-224", "paligemma2", "3.0B", "Gemma, gated"
    ),
    KnownModel("pixtral-12b", "mistral-community/pixtral-12b", "pixtral", "13B", "Apache-2.0"),
    KnownModel(
        "mistral-small-3.1",
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        "mistral3",
        "24B",
        "Apache-2.0",
    ),
    KnownModel("internvl3.5-1b", "OpenGVLab/InternVL3_5-1B-HF", "internvl", "1.1B", "Apache-2.0"),
    KnownModel("internvl3.5-8b", "OpenGVLab/InternVL3_5-8B-HF", "internvl", "8.5B", "Apache-2.0"),
    KnownModel("glm-4.1v-9b", "zai-org/GLM-4.1V-9B-Thinking", "glm4v", "10B", "MIT"),
)


def resolved(name: str) -> str:
    """The id of a model that is named by its alias; other names, and folders, as they stand."""
    known = {model.alias: model.id for model in MODELS}
    return name if user_path(name).is_dir() else known.get(name.lower(), name)


def is_cached(model_id: str) -> bool:
    """Whether config and weights of a model are in the Hub's cache on this machine; asks nobody."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    config = try_to_load_from_cache(model_id, "config.json")
    return isinstance(config, str) and any(Path(config).parent.glob("*.safetensors"))
