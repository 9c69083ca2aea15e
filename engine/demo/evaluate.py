"""How often the demo model is right: `python -m engine.demo.evaluate [MODEL] --scenes 500`.

Asks about held-out scenes through plain transformers, greedily, and prints one JSON object. With
`--easy-vqa` it also asks the test questions of the PyPI package `easy-vqa` (which must be
importable) about shape and colour.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2VLImageProcessorPil

from engine.demo import MODEL_DIR
from engine.demo.batches import HELD_OUT_SEED
from engine.demo.palette import BACKGROUNDS, COLOURS
from engine.demo.questions import questions
from engine.demo.scenes import SIZES, draw_scene
from engine.demo.wording import KINDS, PLACES

Exchange = tuple[str, str | None]  # a question, and its answer where it is already given
MANNERS = {
    "plain": "Describe the image.",
    "detailed": "Describe this picture in detail.",
    "list": "what is in this image?",
    "brief": "Describe the picture in one sentence",
}
_SHAPE = re.compile(
    rf"(?:(?P<before>{'|'.join(PLACES)}) there is )?an? (?P<size>{'|'.join(SIZES)}) "
    rf"(?P<colour>{'|'.join(COLOURS)}) (?P<kind>{'|'.join(KINDS)})",
    re.IGNORECASE,
)
_GROUND = re.compile(rf"({'|'.join(BACKGROUNDS)}) background")
_COUNT = re.compile(r"(\w+) shapes? ")


class Answerer:
    """A model folder as a function from pictures and conversations to greedy answers."""

    def __init__(self, folder: Path):
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        self._model = model  # from_pretrained has set evaluation mode

    def answer(
        self, pictures: Sequence[Image.Image], asked: Sequence[Sequence[Exchange]]
    ) -> list[str]:
        """The answers to each conversation's last question, one picture a conversation."""
        seen = self._processor(list(pictures), return_tensors="pt")
        texts = [
            self._prompt(exchanges, int(grid.prod()) // 4)
            for exchanges, grid in zip(asked, seen["image_grid_thw"], strict=True)
        ]
        encoded = self.tokenizer(texts, return_tensors="pt", padding=True)
        image_token = self._model.config.image_token_id
        written = self._model.generate(
            **encoded,
            **seen,
            mm_token_type_ids=(encoded["input_ids"] == image_token).int(),
            max_new_tokens=200,
        )
        new = written[:, encoded["input_ids"].shape[1] :]
        answers: list[str] = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return answers

    def _prompt(self, exchanges: Sequence[Exchange], image_tokens: int) -> str:
        messages: list[dict[str, Any]] = []
        for question, answer in exchanges:
            messages.append({"role": "user", "content": [{"type": "text", "text": question}]})
            if answer is not None:
                messages.append({"role": "assistant", "content": answer})
        messages[0]["content"].insert(0, {"type": "image"})
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return str(text).replace("<|image_pad|>", "<|image_pad|>" * image_tokens)


def attributes(description: str) -> Counter[tuple[str, ...]]:
    """What a plain description claims: count, background and, place by place, each shape's looks.

    A description that does not parse claims little, which costs recall.
    """
    claims: Counter[tuple[str, ...]] = Counter()
    if count := _COUNT.search(description):
        claims["count", count[1]] += 1
    if ground := _GROUND.search(description):
        claims["background", ground[1]] += 1
    for shape in _SHAPE.finditer(description):
        place = (shape["before"] or "nowhere").casefold()
        claims["position", place] += 1
        for attribute in ("kind", "colour", "size"):
            claims[attribute, place, shape[attribute]] += 1
    return claims


def _share(right: int, asked: int) -> float:
    return round(right / asked, 4) if asked else 0.0


def _slices(total: int, size: int = 50) -> Iterator[range]:
    return (range(start, min(start + size, total)) for start in range(0, total, size))


def describe_scenes(answerer: Answerer, scenes: int) -> dict[str, Any]:
    """Precision and recall over attributes, and how many descriptions are right whole."""
    right: Counter[str] = Counter()
    claimed: Counter[str] = Counter()
    true: Counter[str] = Counter()
    agreed: Counter[str] = Counter()
    for numbers in _slices(scenes):
        drawn = [draw_scene(HELD_OUT_SEED + number) for number in numbers]
        for manner, prompt in MANNERS.items():
            answers = answerer.answer(
                [image for image, _ in drawn], [[(prompt, None)]] * len(drawn)
            )
            for (_, scene), answer in zip(drawn, answers, strict=True):
                expected = scene.description(prompt)
                right[manner] += answer == expected
                if manner != "plain":
                    continue
                claims, facts = attributes(answer), attributes(expected)
                for counter, found in ((claimed, claims), (true, facts), (agreed, claims & facts)):
                    for claim, number in found.items():
                        counter[claim[0]] += number
    return {
        "precision": {name: _share(agreed[name], claimed[name]) for name in sorted(true)},
        "recall": {name: _share(agreed[name], true[name]) for name in sorted(true)},
        "whole_descriptions": {name: _share(right[name], scenes) for name in MANNERS},
    }


def ask_scenes(answerer: Answerer, scenes: int) -> dict[str, float]:
    """Short questions answered rightly, by category; second turns see the model's own answers."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for numbers in _slices(scenes):
        drawn = [draw_scene(HELD_OUT_SEED + number) for number in numbers]
        images = [image for image, _ in drawn]
        turns = [
            questions(scene, HELD_OUT_SEED + n)
            for n, (_, scene) in zip(numbers, drawn, strict=True)
        ]
        firsts = answerer.answer(images, [[(first.question, None)] for first, _ in turns])
        seconds = answerer.answer(
            images,
            [
                [(first.question, answer), (second.question, None)]
                for (first, second), answer in zip(turns, firsts, strict=True)
            ],
        )
        for answers, position in ((firsts, 0), (seconds, 1)):
            for answer, conversation in zip(answers, turns, strict=True):
                turn = conversation[position]
                for name in ("all", f"turn {position + 1}", turn.category):
                    asked[name] += 1
                    right[name] += answer == turn.answer
    return {name: _share(right[name], asked[name]) for name in sorted(asked)}


def ask_easy_vqa(answerer: Answerer) -> dict[str, list[float]]:
    """easy-VQA's open questions about shape and colour, as they are: right, asked, share.

    An answer is right when it holds the expected word; "square" will do for "rectangle". Grey and
    teal are no colours of ours and are counted by themselves.
    """
    easy_vqa = importlib.import_module("easy_vqa")
    pictures = easy_vqa.get_test_image_paths()
    rows = [
        (text, "square" if answer == "rectangle" else answer, image)
        for text, answer, image in zip(*easy_vqa.get_test_questions(), strict=True)
        if answer not in {"yes", "no"}
    ]
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for numbers in _slices(len(rows)):
        chosen = [rows[number] for number in numbers]
        images = [Image.open(pictures[image]).convert("RGB") for _, _, image in chosen]
        answers = answerer.answer(images, [[(text, None)] for text, _, _ in chosen])
        for answer, (_, expected, _) in zip(answers, chosen, strict=True):
            group = "shape" if expected in KINDS else "colour"
            name = group if expected in {*KINDS, *COLOURS} else "grey or teal"
            asked[name] += 1
            right[name] += re.search(rf"\b{expected}\b", answer) is not None
    return {name: [right[name], asked[name], _share(right[name], asked[name])] for name in asked}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of `python -m engine.demo.evaluate`."""
    parser = argparse.ArgumentParser(prog="python -m engine.demo.evaluate", description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL_DIR, help="model folder")
    parser.add_argument("--scenes", type=int, default=500, help="how many held-out scenes")
    parser.add_argument("--easy-vqa", action="store_true", help="ask easy-VQA's questions too")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    answerer = Answerer(options.model)
    figures: dict[str, Any] = describe_scenes(answerer, options.scenes)
    figures["questions"] = ask_scenes(answerer, options.scenes)
    if options.easy_vqa:
        figures["easy_vqa"] = ask_easy_vqa(answerer)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
