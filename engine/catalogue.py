"""Models that people ask for, by short names. Data; whether they are on this machine is asked here.

Sizes are parameters as the authors count them. Licences are those of the weights; a gated model
asks for consent on huggingface.co first.
"""

from dataclasses import dataclass
from pathlib import Path


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
    KnownModel(
        "qwen2.5-vl-3b", "Qwen/Qwen2.5-VL-3B-Instruct", "qwen2_5_vl", "3.8B", "Qwen Research"
    ),
    KnownModel("qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl", "8.3B", "Apache-2.0"),
)


def resolved(name: str) -> str:
    """The id of a model that is named by its alias; other names, and folders, as they stand."""
    known = {model.alias: model.id for model in MODELS}
    return name if Path(name).expanduser().is_dir() else known.get(name.lower(), name)


def is_cached(model_id: str) -> bool:
    """Whether config and weights of a model are in the Hub's cache on this machine; asks nobody."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

    config = try_to_load_from_cache(model_id, "config.json")
    return isinstance(config, str) and any(Path(config).parent.glob("*.safetensors"))
