"""What `/set` changes while a conversation goes on."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import UsageError
from recap_cli.chat_talk import Talk

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting.

    Attributes:
        values: what it takes, for messages.
        show: its value as it would be typed.
        change: takes a new one, and raises UsageError if that is none.
    """

    values: tuple[str, ...]
    show: Callable[[Talk], str]
    change: Callable[[Talk, str], None]


def change(talk: Talk, name: str, value: str) -> None:
    """Change a setting.

    Raises:
        UsageError: there is no such setting, or no such value of it.
    """
    if name not in SETTINGS:
        raise UsageError(f"there is no setting {name!r}: /set takes {', '.join(SETTINGS)}")
    setting = SETTINGS[name]
    try:
        setting.change(talk, value)
    except ValueError as error:
        raise UsageError(f"{name} takes {' or '.join(setting.values)}, not {value!r}") from error


def _set_max_tokens(talk: Talk, value: str) -> None:
    number = None if value == AUTO else int(value)
    if number is not None and number < 1:
        raise ValueError
    talk.conversation.max_tokens = number


def _set_drop_oldest(talk: Talk, value: str) -> None:
    talk.conversation.drop_oldest = _is_on(value)


def _set_markdown(talk: Talk, value: str) -> None:
    talk.display.markdown = _is_on(value)


def _is_on(value: str) -> bool:
    return bool(_SWITCH.index(value))


def _switch(on: bool) -> str:
    return _SWITCH[on]


_SWITCH = ("off", "on")

SETTINGS = {
    "max-tokens": Setting(
        ("a number", AUTO),
        lambda talk: str(talk.conversation.max_tokens or AUTO),
        _set_max_tokens,
    ),
    "drop-oldest": Setting(
        _SWITCH, lambda talk: _switch(talk.conversation.drop_oldest), _set_drop_oldest
    ),
    "markdown": Setting(_SWITCH, lambda talk: _switch(talk.display.markdown), _set_markdown),
}
