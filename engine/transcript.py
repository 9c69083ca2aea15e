"""What was said in a conversation, turn by turn, and the file that keeps it.

The file is JSON. It names pictures by source and SHA-256 and holds none of their pixels; it is only
replaced whole, so that a crash loses no turn that was written. Knows no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.events import FinishReason
from engine.images import ImageOptions
from engine.prompts import Message


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer.

    Attributes:
        question: the user's message, pictures included.
        answer: the text that was shown, up to where it ended or was interrupted.
        token_ids: the answer's tokens, as `engine.events.Finished` has them.
        finish_reason: why the answer ended.
        prompt_tokens: tokens of the conversation up to the answer, those of pictures included.
        kept_tokens: how many of those the cache held from the turn before.
        measures: of the answer, under the names of DESIGN section 4.
    """

    question: Message
    answer: str
    token_ids: Sequence[int]
    finish_reason: FinishReason
    prompt_tokens: int
    kept_tokens: int
    measures: Mapping[str, object]

    @property
    def tokens(self) -> int:
        """Tokens of the conversation up to the end of the answer."""
        return self.prompt_tokens + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation as its file has it.

    Attributes:
        model: name of the model that answered last.
        system: the system message; None where there is none.
        exchanges: all of them, the oldest first.
        dropped: how many of the oldest the model does not read any more.
    """

    model: str
    system: str | None
    exchanges: Sequence[Exchange]
    dropped: int = 0


def save_transcript(path: Path, transcript: Transcript) -> None:
    """Write the file, or leave the one that is there as it was.

    Raises:
        TranscriptError: it cannot be written, or a picture has no source to be named by.
    """
    raise NotImplementedError


def load_transcript(path: Path, options: ImageOptions | None = None) -> Transcript:
    """Read the file and open its pictures.

    Raises:
        TranscriptError: it cannot be read, or is no transcript; a picture is not there any more,
            or is another one now.
    """
    raise NotImplementedError
