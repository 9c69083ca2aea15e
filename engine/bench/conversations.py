"""Tasks as requests: pictures opened, and behind earlier turns the answers that all go on from.

Everybody answers the second turn of a conversation behind the plain loop's first answer, so that
they answer the same.
"""

from collections.abc import Iterable, Sequence
from time import perf_counter

from PIL import Image

from engine.bench.document import PLAIN, Record
from engine.bench.workloads import Task
from engine.errors import RequestError
from engine.images import open_picture
from engine.loading import LoadedModel
from engine.prompts import Message
from engine.session import Request

Pictures = list[tuple[Image.Image, ...]]
"""Of each turn of a task."""


class Conversations:
    """The requests of some tasks; keeps the pictures of the task that was asked for last."""

    def __init__(self, loaded: LoadedModel, tasks: Sequence[Task]) -> None:
        self._tokenizer = loaded.encoder.tokenizer
        self._tasks = {task.id: task for task in tasks}
        self._answers: dict[tuple[str, int], str | None] = {}
        self._opened: tuple[str, Pictures, list[float]] = ("", [], [])

    def hear(self, records: Iterable[Record]) -> None:
        """Learn the plain loop's answers; those of its first repetition count."""
        for record in records:
            if record["contender"] == PLAIN and record["repetition"] == 0:
                ids = record["token_ids"]
                text = (
                    None if ids is None else self._tokenizer.decode(ids, skip_special_tokens=True)
                )
                self._answers[record["task"], record["turn"]] = text

    def request(self, task_id: str, turn: int, max_tokens: int) -> Request:
        """The request of a task's turn; the time that its pictures took to open counts as its own.

        Raises:
            RequestError: a picture cannot be opened, or there is no answer to go on from.
        """
        task = self._tasks[task_id]
        messages = []
        pictures, seconds = self._pictures(task)
        for at, (asked, images) in enumerate(zip(task.turns[: turn + 1], pictures, strict=False)):
            messages.append(Message("user", asked.text, images))
            if at < turn:
                messages.append(Message("assistant", self._answer(task, at)))
        return Request(messages, max_tokens, elapsed_s=sum(seconds[: turn + 1]))

    def _answer(self, task: Task, turn: int) -> str:
        answer = self._answers.get((task.id, turn))
        if answer is None:
            raise RequestError(f"turn {turn + 1} has no answer of {PLAIN} to go on from")
        return answer

    def _pictures(self, task: Task) -> tuple[Pictures, list[float]]:
        """The pictures of a task by turn, and how many seconds it took to open those of each."""
        opened, pictures, seconds = self._opened
        if opened != task.id:
            pictures, seconds = [], []
            for turn in task.turns:
                started = perf_counter()
                pictures.append(tuple(open_picture(source).image for source in turn.images))
                seconds.append(perf_counter() - started)
            self._opened = task.id, pictures, seconds
        return pictures, seconds
