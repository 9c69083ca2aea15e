"""Which models are taken, which are refused and why; how their processors are loaded."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from engine.errors import ModelError, UnsupportedModel
from engine.families import FAMILIES, family_of
from engine.processors import Processor, load_processor
from tests import models
from tests.models import build_tiny_model, picture
from tests.zoo import Zoo

VISION = sorted(name for name, family in FAMILIES.items() if family.vision)
EVERY_FAMILY = pytest.mark.parametrize("model_type", sorted(FAMILIES))


def load(folder: Path) -> Processor:
    return load_processor(folder, family_of(AutoConfig.from_pretrained(folder)))


@EVERY_FAMILY
def test_every_claimed_family_has_a_tiny_model_and_its_own_processor(
    zoo: Zoo, model_type: str
) -> None:
    folder = zoo.folder_of(model_type, None)
    family = family_of(AutoConfig.from_pretrained(folder))
    processor = load(folder)
    assert family.model_type == model_type
    assert (processor.multimodal is not None) == family.vision
    if processor.multimodal is not None:
        assert type(processor.multimodal).__name__ == family.processor


@EVERY_FAMILY
def test_placeholders_are_the_ids_that_stand_for_features(zoo: Zoo, model_type: str) -> None:
    folder = zoo.folder_of(model_type, None)
    config = AutoConfig.from_pretrained(folder)
    names = load(folder).tokenizer.convert_ids_to_tokens(
        sorted(family_of(config).placeholder_ids(config))
    )
    assert sorted(names) == sorted(models.FAMILIES[model_type].placeholders)


@EVERY_FAMILY
def test_positions_have_three_axes_where_the_model_says_so(zoo: Zoo, model_type: str) -> None:
    text_config = AutoConfig.from_pretrained(zoo.folder_of(model_type, None)).get_text_config()
    three_axes = "mrope_section" in text_config.rope_parameters
    assert (FAMILIES[model_type].rope == "mrope") == three_axes


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("t5", "encoder-decoder"),
        ("mamba", "recurrent state"),
        ("rwkv", "recurrent state"),
        ("jamba", "recurrent state"),
        ("qwen3_next", "recurrent state"),
        ("qwen3_5", "recurrent state"),
        ("recurrent_gemma", "recurrent state"),
        ("falcon_h1", "recurrent state"),
        ("gpt2", "not been tested"),
    ],
)
def test_other_models_are_refused_by_name_and_reason(model_type: str, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        family_of(AutoConfig.for_model(model_type))
    message = str(refusal.value)
    assert message.startswith(f"{model_type} models")
    assert all(family.name in message for family in FAMILIES.values())
    assert "\n" not in message


def test_a_part_that_was_not_tested_is_refused_as_well() -> None:
    around = AutoConfig.for_model("internvl", text_config={"model_type": "gpt_oss"})
    with pytest.raises(UnsupportedModel, match=r"^internvl models around gpt_oss have not been"):
        family_of(around)
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0}
    rope |= {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8}
    two_tables = AutoConfig.for_model(
        "llama", hidden_size=64, num_attention_heads=4, rope_parameters=rope
    )
    with pytest.raises(UnsupportedModel, match=r"^llama models with longrope have not been"):
        family_of(two_tables)


@pytest.mark.parametrize("model_type", VISION)
def test_pictures_go_through_pillow_and_no_video_processor_is_asked_for(
    zoo: Zoo, model_type: str
) -> None:
    multimodal: Any = load(zoo.folder_of(model_type, None)).multimodal
    assert type(multimodal.image_processor).__name__.endswith("Pil")
    assert multimodal.get_attributes() == ["image_processor", "tokenizer"]


def test_a_processor_saved_with_its_video_processor_loads_without_it(tmp_path: Path) -> None:
    folder = build_tiny_model("qwen2_5_vl", tmp_path)
    images = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    saved = {
        "processor_class": "Qwen2_5_VLProcessor",
        "image_processor": images,
        "video_processor": {"video_processor_type": "Qwen2VLVideoProcessor"},
    }
    (folder / "processor_config.json").write_text(json.dumps(saved))
    multimodal: Any = load(folder).multimodal
    seen = multimodal(text="<|image_pad|>", images=[[picture(113, 112)]], return_tensors="pt")
    assert seen["image_grid_thw"].tolist() == [[1, 8, 8]]


def test_a_picture_for_pixtral_becomes_rows_with_breaks_between_and_an_end(zoo: Zoo) -> None:
    multimodal: Any = load(zoo.folder_of("mistral3", None)).multimodal
    seen = multimodal(text="[IMG]", images=[[picture(84, 56)]], return_tensors="pt")
    row = ["[IMG]"] * 3
    expected = [*row, "[IMG_BREAK]", *row, "[IMG_END]"]
    ids = multimodal.tokenizer.convert_tokens_to_ids(expected)
    assert seen["input_ids"][0].tolist()[-len(ids) :] == ids
    assert seen["image_sizes"].tolist() == [[56, 84]]


@EVERY_FAMILY
def test_a_folder_needs_no_network(
    zoo: Zoo, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = zoo.folder_of(model_type, None)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert load(folder).tokenizer.is_fast


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    folder = build_tiny_model("qwen2", tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert_names_the_folder(folder, reason="has no tokenizer.json")


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    folder = build_tiny_model("llama", tmp_path)
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": 3}')
    assert_names_the_folder(folder)


def test_a_vision_model_without_an_image_processor_is_named(tmp_path: Path) -> None:
    folder = build_tiny_model("llava_next", tmp_path)
    (folder / "preprocessor_config.json").unlink()
    assert_names_the_folder(folder)


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    folder = build_tiny_model("llava_next", tmp_path)
    (folder / "trap.py").write_text("raise SystemExit('code was run')\n")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["image_processor_type"] = "TrapImageProcessor"
    settings["auto_map"] = {"AutoImageProcessor": "trap.TrapImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    assert_names_the_folder(folder)


def assert_names_the_folder(folder: Path, reason: str = "cannot be loaded: .") -> None:
    with pytest.raises(ModelError, match=reason) as error:
        load(folder)
    assert str(error.value).startswith(f"{folder}: ")
    assert "\n" not in str(error.value)
