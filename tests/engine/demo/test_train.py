"""Training: batches as the model will meet them at use, and runs that can be taken up again."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from engine.demo.batches import Batch, Conversations, cells_of, patches
from engine.demo.build import SIDE, new_image_processor, new_model, new_tokenizer
from engine.demo.losses import Glance, looks_loss, text_losses
from engine.demo.palette import COLOURS
from engine.demo.scenes import SIZES, draw_scene
from engine.demo.train import Settings, Trainer, train
from engine.demo.wording import KINDS, Scene, Shape

TOKENIZER = new_tokenizer()
SETTINGS = Settings(steps=4, look_first=1, look_again=2, batch=2, warm_up=2)


@pytest.fixture(scope="module")
def model() -> Qwen2_5_VLForConditionalGeneration:
    torch.manual_seed(0)
    return new_model(TOKENIZER)


def _text(ids: torch.Tensor) -> str:
    return str(TOKENIZER.decode(ids))


def _batch(step: int = 0, size: int = 6) -> Batch:
    return Conversations(TOKENIZER, seed=1, pool=20).batch(step, size)


def test_a_batch_follows_from_seed_and_step() -> None:
    one, other, later = _batch(3), _batch(3), _batch(4)
    assert torch.equal(one.input_ids, other.input_ids)
    assert torch.equal(one.pixel_values, other.pixel_values)
    assert not torch.equal(one.input_ids, later.input_ids)


def test_only_the_answers_are_learned() -> None:
    batch = _batch()
    for ids, labels in zip(batch.input_ids, batch.labels, strict=True):
        text = _text(ids)
        answers = [part.split("<|im_end|>")[0] for part in text.split("assistant\n")[1:]]
        learned = _text(labels[labels != -100]).split("<|im_end|>")
        assert learned == [*answers, ""]


def test_ids_are_those_of_the_chat_template() -> None:
    text = _text(_batch().input_ids[0]).replace("<|endoftext|>", "")
    parts = text.replace("<|im_end|>\n", "").split("<|im_start|>")[1:]
    messages = [dict(zip(("role", "content"), part.split("\n", 1), strict=True)) for part in parts]
    assert TOKENIZER.apply_chat_template(messages, tokenize=False) == text
    ids = TOKENIZER.encode(text)
    assert _batch().input_ids[0, : len(ids)].tolist() == ids


def test_positions_are_the_models_own(model: Qwen2_5_VLForConditionalGeneration) -> None:
    batch = _batch()
    is_image = batch.input_ids == model.config.image_token_id
    expected, _ = model.model.get_rope_index(
        batch.input_ids, mm_token_type_ids=is_image.int(), image_grid_thw=batch.image_grid_thw
    )
    assert torch.equal(batch.position_ids, expected)


@pytest.mark.parametrize("seed", range(4))
def test_pixels_are_the_image_processors(seed: int) -> None:
    image, _ = draw_scene(seed)
    expected = new_image_processor()(image, return_tensors="pt")["pixel_values"]
    small = np.asarray(image.resize((SIDE, SIDE), resample=3))
    assert torch.equal(patches(small[None]), expected)


def test_cells_are_the_scenes_shapes_in_reading_order() -> None:
    scene = Scene(
        "white", (Shape("star", "red", "large", 0, 1), Shape("ring", "black", "small", 2, 2))
    )
    cells = cells_of(scene)
    assert cells[1] == [1 + KINDS.index("star"), 1 + list(COLOURS).index("red"), 2]
    assert cells[8] == [1 + KINDS.index("ring"), 1 + list(COLOURS).index("black"), 1]
    assert [cell for number, cell in enumerate(cells) if number not in {1, 8}] == [[0, 0, 0]] * 7


def test_a_name_points_at_the_shapes_so_called() -> None:
    batch = _batch(size=12)
    cells = iter(batch.cells)
    for ids, named in zip(batch.input_ids, batch.named, strict=True):
        shown = next(cells)[:, :2].tolist() if _picture(ids) else []
        for at in named.any(1).nonzero().flatten().tolist():
            words = _text(ids[at - 1 : at + 1]).lower().split()
            kind = next((n for n, kind in enumerate(KINDS, 1) if words[-1].startswith(kind)), None)
            colour = next((n for n, name in enumerate(COLOURS, 1) if words[0] == name), None)
            right = [
                cell[0] > 0 and kind in {None, cell[0]} and colour in {None, cell[1]}
                for cell in shown
            ]
            expected = torch.tensor([*right, not any(right)]).float()
            assert torch.equal(named[at], expected / expected.sum())


def test_a_name_is_due_from_the_word_before_it_on_where_the_assistant_says_it() -> None:
    batch = _batch(size=12)
    for ids, labels, named, due in zip(
        batch.input_ids, batch.labels, batch.named, batch.due, strict=True
    ):
        told = dict.fromkeys(due.any(1).nonzero().flatten().tolist())
        assert told, "somebody says a name"
        for at in told:
            assert labels[at] != -100
            word = _text(ids[at + 1 : at + 2]).lower().strip()
            assert word.startswith((*KINDS, *COLOURS, *SIZES, "shape"))
            end = next(n for n in range(at + 1, len(ids)) if named[n].any())
            assert torch.equal(due[at], named[end])
            assert all(n in told for n in range(at, end)), "to the end of the name"


def _picture(ids: torch.Tensor) -> bool:
    return "<|image_pad|>" in _text(ids)


def test_the_words_loss_is_the_models_own(model: Qwen2_5_VLForConditionalGeneration) -> None:
    batch, glance = _batch(), Glance(model.config.text_config.hidden_size)
    model.model.language_model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            pixel_values=batch.pixel_values,
            image_grid_thw=batch.image_grid_thw,
        ).logits
        words = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        assert text_losses(model, glance, batch).words.item() == pytest.approx(words.item())


def test_names_are_looked_up_in_the_picture() -> None:
    """One row of twelve tokens: ten of a picture, then two that end a name."""
    is_image = torch.tensor([[True] * 9 + [False] * 3])
    named, looks = torch.zeros(1, 12, 10), torch.zeros(1, 12, 12)
    named[0, 10, 4], named[0, 11, 9] = 1, 1  # a shape in the centre, and one that is not there
    looks[0, 10, 4], looks[0, 11, 9] = 0.5, 0.25
    expected = (math.log(2) + math.log(4)) / 2
    assert looks_loss(looks, named, is_image).item() == pytest.approx(expected)


def _copied(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.clone() for parameter in module.parameters()]


def test_the_eyes_are_trained_first_then_the_rest_and_at_last_both() -> None:
    trainer = Trainer(SETTINGS)
    text, eyes = trainer.model.model.language_model, trainer.model.model.visual
    words, looks = _copied(text), _copied(eyes)
    trainer.advance()
    assert all(map(torch.equal, words, text.parameters()))
    assert not any(map(torch.equal, looks, eyes.parameters()))
    looks = _copied(eyes)
    trainer.advance()
    assert not any(map(torch.equal, words, text.parameters()))
    assert all(map(torch.equal, looks, eyes.parameters()))
    words = _copied(text)
    trainer.advance()
    assert not any(map(torch.equal, words, text.parameters()))
    assert not any(map(torch.equal, looks, eyes.parameters()))


def test_the_rates_rise_stay_and_fall() -> None:
    settings = Settings(steps=100, look_first=20, warm_up=10, cool_down=0.5)
    assert settings.pace(0) == settings.pace(20) == pytest.approx(0.1)
    assert settings.pace(15) == settings.pace(40) == 1.0
    assert settings.pace(75) == pytest.approx(0.5)
    assert settings.pace(99) == pytest.approx(0.02)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, first, second = Trainer(SETTINGS), Trainer(SETTINGS), Trainer(SETTINGS)
    losses = [whole.advance() for _ in range(4)]
    resumed = [first.advance() for _ in range(2)]
    first.save_checkpoint(tmp_path / "checkpoint.pt")
    second.load_checkpoint(tmp_path / "checkpoint.pt")
    resumed += [second.advance() for _ in range(2)]
    assert resumed == losses
    for ours, theirs in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_can_start_from_a_models_weights(tmp_path: Path) -> None:
    saved = train(tmp_path / "first", Settings(steps=1, look_first=1, batch=2)).model.half()
    init = tmp_path / "first" / "model"
    again = train(tmp_path / "second", Settings(steps=0), init).model
    for ours, theirs in zip(saved.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours.float(), theirs)
    assert json.loads((tmp_path / "second" / "log.jsonl").read_text())["init"] == str(init)


def test_a_folder_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    train(tmp_path, Settings(steps=1, look_first=1, batch=2))
    assert train(tmp_path, Settings(steps=2, look_first=1, batch=2)).step == 2
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [record["start"] for record in records if "start" in record] == [0, 1]
    loaded = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "model")
    assert loaded.dtype == torch.float16
