"""Keeps what a user types apart from the control tokens that a chat template writes.

`<|im_end|>` or `<image>` inside a prompt is text to the model: the plain characters, never the
token of that name. A tokenizer cannot see who wrote what once template and prompt are one string,
so the user's occurrences are hidden behind unguessable names before the template is applied, and a
twin of the tokenizer, whose control tokens bear unguessable names themselves, encodes the result.
The twin differs in nothing else, so everything around such words is encoded as always.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer
from transformers import BatchEncoding

# Each name starts and ends with a private-use character, which no template or normaliser touches.
_HIDDEN, _RENAMED, _END = "\ue000", "\ue001", "\ue002"


class ControlTokens:
    """The control tokens of one model, and the typed words that look like them.

    A control token is an added token that is special, or that the chat template writes. The latter
    are also the model's own words (`</think>`), and its template may look for them in its answers.
    """

    def __init__(self, tokenizer: Any, chat_template: str, placeholders: Iterable[int]) -> None:
        """Collect the control tokens.

        Args:
            tokenizer: transformers' tokenizer.
            chat_template: the template's source; empty where there is none.
            placeholders: ids that are control tokens whatever the tokenizer says of them.
        """
        placeholders = frozenset(placeholders)
        added = tokenizer.added_tokens_decoder.items()
        special = [t.content for index, t in added if t.special or index in placeholders]
        written = [t.content for _, t in added if t.content in chat_template]
        written = [content for content in written if not content.isspace()]
        self._contents = tuple(dict.fromkeys([*special, *written]))
        nonce = secrets.token_hex(8)
        self._hidden = self._names(_HIDDEN, nonce)
        self._renamed = self._names(_RENAMED, nonce)
        self._typed = {name: content for content, name in self._hidden.items()}
        self._content_pattern = _any_of(self._contents)
        self._special_pattern = _any_of(special)
        self._hidden_pattern = re.compile(f"{_HIDDEN}{nonce}[0-9]+{_END}")

    def hide(self, text: str, *, answered: bool = False) -> str:
        """Replace every word in a message that is spelt like a control token.

        In what the model `answered`, only those that it cannot have written: the special ones.
        """
        pattern = self._special_pattern if answered else self._content_pattern
        return _translate(pattern, self._hidden, text)

    def reveal(self, text: str) -> str:
        """Put the hidden words back."""
        return _translate(self._hidden_pattern, self._typed, text)

    def rename(self, text: str) -> str:
        """Give the control tokens themselves their names in the twin tokenizer."""
        return _translate(self._content_pattern, self._renamed, text)

    def twin(self, backend: Tokenizer) -> Tokenizer:
        """The same tokenizer, but for the names of its control tokens; their ids are the same."""
        state = json.loads(backend.to_str())
        for token in state["added_tokens"]:
            token["content"] = self._renamed.get(token["content"], token["content"])
        model = state["model"]
        model["vocab"] = {self._renamed.get(t, t): index for t, index in model["vocab"].items()}
        model["unk_token"] = self._renamed.get(model["unk_token"], model["unk_token"])
        twin = Tokenizer.from_str(json.dumps(state))
        twin.no_truncation()
        twin.no_padding()
        return twin

    def _names(self, start: str, nonce: str) -> dict[str, str]:
        return {
            content: f"{start}{nonce}{index}{_END}" for index, content in enumerate(self._contents)
        }


class LiteralTokenizer:
    """A tokenizer for text with hidden words, which a processor can call in place of its own."""

    def __init__(self, tokenizer: Any, control: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._twin = control.twin(tokenizer.backend_tokenizer)

    def __call__(
        self,
        text: str | list[str],
        add_special_tokens: bool = True,
        return_tensors: str | None = None,
        **_: object,
    ) -> BatchEncoding:
        """Encode one text or several, as the tokenizer does; no padding, no truncation.

        Offsets are those of the tokenizer itself, to which a hidden word is its name: where a
        picture's placeholders lie, they count the same tokens.
        """
        texts = [text] if isinstance(text, str) else text
        theirs = self._tokenizer(texts, add_special_tokens=add_special_tokens)
        ids = [
            self._twin.encode(
                self._control.reveal(self._control.rename(each)),
                add_special_tokens=add_special_tokens,
            ).ids
            for each in texts
        ]
        masks = [[1] * len(row) for row in ids]
        return BatchEncoding(
            {"input_ids": ids, "attention_mask": masks},
            encoding=theirs.encodings,
            tensor_type=return_tensors,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _translate(pattern: re.Pattern[str], names: Mapping[str, str], text: str) -> str:
    return pattern.sub(lambda match: names[match[0]], text)
