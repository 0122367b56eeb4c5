"""What a group of settings is: typed fields that are read from texts.

Every process reads settings before it does anything else, so this imports little. The messages say
which value is accepted; `read_settings` adds the name of the variable.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, NoReturn, Self, dataclass_transform, get_args, get_origin

TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})
FALSE_WORDS = frozenset({"0", "off", "f", "false", "n", "no"})


class SettingInvalid(ValueError):
    """A value that a field does not accept."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}")


class Secret:
    """A text that is neither shown nor logged."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret('**********')"


ReadText = Callable[[str], Any]  # raises ValueError with a sentence


class Setting:
    """A field of a group: its default, its bounds, and what the docs say of it."""

    __slots__ = ("default", "description", "ge", "le", "pattern", "read", "unit")

    def __init__(
        self,
        default: Any,
        *,
        unit: str,
        description: str,
        ge: float | None = None,
        le: float | None = None,
        pattern: str | None = None,
        read: ReadText | None = None,
    ) -> None:
        self.default = default
        self.unit = unit
        self.description = description
        self.ge = ge
        self.le = le
        self.pattern = pattern
        self.read = read  # instead of the reader of its type

    def check_bounds(self, value: Any) -> None:
        """Raise ValueError if the value is out of bounds. NaN is out of all bounds."""
        if self.le is not None and not value <= self.le:
            raise ValueError(f"must be at most {self.le}, not {value}")
        if self.ge is not None and not value >= self.ge:
            raise ValueError(f"must be at least {self.ge}, not {value}")
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise ValueError(f"{value!r} does not match the pattern {self.pattern}")


def setting(default: Any, **about: Any) -> Any:
    """Declare a field of a `SettingsGroup`, with the arguments of `Setting`."""
    return Setting(default, **about)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class SettingsGroup:
    """Settings that belong together. A field accepts a text, as the environment has it, or a value."""

    prefix: ClassVar[str] = "NOETL_"  # of the variables
    fields: ClassVar[dict[str, Setting]] = {}
    given_names: frozenset[str]  # of the fields that were given a value

    def __init_subclass__(cls, prefix: str = "NOETL_") -> None:
        cls.prefix = prefix
        cls.fields = {}
        for name in cls.__annotations__:
            cls.fields[name] = cls.__dict__[name]
            delattr(cls, name)

    def __init__(self, **values: Any) -> None:
        for name, field in self.fields.items():
            value = values.get(name, field.default)
            if name in values:
                value = self._read_value(name, field, value)
            self.__dict__[name] = value
        self.__dict__["given_names"] = frozenset(values)
        if unknown := self.given_names - self.fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")

    def _read_value(self, name: str, field: Setting, value: Any) -> Any:
        try:
            if isinstance(value, str):
                read = field.read or _choose_reader(self.__annotations__[name])
                value = read(value)
            if value is not None:
                field.check_bounds(value)
        except ValueError as error:
            raise SettingInvalid(name, str(error)) from error
        return value

    def replace(self, **changes: Any) -> Self:
        """The same settings with other values for these fields."""
        given = {name: getattr(self, name) for name in self.given_names}
        return type(self)(**(given | changes))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")


def _choose_reader(kind: Any) -> ReadText:
    """The function that reads a text of a type of `READERS`, of a Literal, or of one of them and
    None."""
    if get_origin(kind) is Literal:
        return partial(_read_choice, get_args(kind))
    if kind not in READERS:
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    return READERS[kind]


def _read_choice(choices: tuple[str, ...], text: str) -> str:
    if text in choices:
        return text
    raise ValueError(f"{text!r} is not one of {', '.join(choices)}")


def _read_bool(text: str) -> bool:
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _read_int(text: str) -> int:
    """Read a whole number; `16.0` is one too."""
    whole, _, fraction = text.strip().partition(".")
    digits = whole if fraction and not fraction.strip("0") else text
    try:
        return int(digits.encode("ascii"))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _read_float(text: str) -> float:
    try:
        return float(text.encode("ascii"))
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


READERS: dict[Any, ReadText] = {
    str: str,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    Path: Path,
    Secret: Secret,
}
