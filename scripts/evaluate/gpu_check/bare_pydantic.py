"""Bare pydantic: reads this project's declared settings on a machine without pydantic.

In:    classes that derive from BaseModel, as pipeline/config.py declares them
Out:   objects with the same defaults, properties and refusals of unknown keys, values out of bounds and contradictions
Owns:  the module `pydantic` of this process, and only if there is no real one
Never: the service: it requires pydantic itself. Conversions of text are not done: the check writes its settings in Python

A machine that is lent for half an hour often has torch and little else.
"""

import importlib
import json
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "ge": lambda value, bound: value >= bound,
    "le": lambda value, bound: value <= bound,
    "gt": lambda value, bound: value > bound,
    "lt": lambda value, bound: value < bound,
    "min_length": lambda value, bound: len(value) >= bound,
}
REQUIRED: Any = object()


class ValidationError(ValueError):
    """Settings that a class refuses."""

    def errors(self) -> list[dict[str, Any]]:
        return [{"loc": (), "msg": str(self)}]


class FieldInfo:
    """The default and the bounds of one setting."""

    def __init__(self, default: Any = REQUIRED, *, default_factory: Any = None, **bounds: Any) -> None:
        self._default, self._factory = default, default_factory
        self._bounds = {name: bound for name, bound in bounds.items() if name in BOUNDS and bound is not None}

    def value(self, name: str) -> Any:
        """Returns the default."""
        if self._factory is not None:
            return self._factory()
        if self._default is REQUIRED:
            raise ValidationError(f"{name}: is required")
        return self._default

    def check(self, name: str, value: Any) -> None:
        for bound, limit in self._bounds.items():
            if value is not None and not BOUNDS[bound](value, limit):
                raise ValidationError(f"{name}: {value!r} must be {bound} {limit}")


class BaseModel:
    """A frozen record of settings, read from its annotations."""

    model_fields: ClassVar[dict[str, FieldInfo]] = {}
    _hints: ClassVar[dict[str, Any]] = {}
    _validators: ClassVar[list[tuple[tuple[str, ...], Any]]] = []

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls._hints = {
            name: hint
            for name, hint in hints.items()
            if not name.startswith("_") and get_origin(hint) is not ClassVar and name not in ("model_fields", "model_config")
        }
        cls.model_fields = {name: _declared(getattr(cls, name, REQUIRED), cls.model_fields.get(name)) for name in cls._hints}
        for name in cls._hints:
            if name in cls.__dict__:
                delattr(cls, name)
        own = [value for value in cls.__dict__.values() if isinstance(value, _Validator)]
        cls._validators = [*cls._validators, *((validator.names, validator.check) for validator in own)]

    def __init__(self, **given: Any) -> None:
        unknown = set(given) - set(self._hints)
        if unknown:
            raise ValidationError(f"{', '.join(sorted(unknown))}: unknown; allowed are {', '.join(self._hints)}")
        for name, declared in self.model_fields.items():
            value = _converted(name, self._hints[name], given[name]) if name in given else declared.value(name)
            declared.check(name, value)
            for names, check in self._validators:
                value = check(type(self), value) if name in names else value
            self.__dict__[name] = value
        for names, check in self._validators:
            if not names:
                check(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise ValidationError(f"{name}: settings are frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    @classmethod
    def model_validate(cls, given: dict[str, Any]) -> Self:
        return cls(**given)

    @classmethod
    def model_validate_json(cls, text: bytes | str) -> Self:
        return cls(**json.loads(text))

    def model_dump(self) -> dict[str, Any]:
        return {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in self.__dict__.items()}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        return json.dumps(self.model_dump(), indent=indent, ensure_ascii=False)

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__ | update)
        return copy


class _Validator:
    """A check that a class declares."""

    def __init__(self, names: tuple[str, ...], check: Any) -> None:
        self.names = names
        self.check = check.__func__ if isinstance(check, classmethod) else check


def model_validator(*, mode: str) -> Callable[[Any], _Validator]:
    assert mode == "after", "the settings of this project are checked whole"
    return lambda check: _Validator((), check)


def field_validator(*names: str) -> Callable[[Any], _Validator]:
    return lambda check: _Validator(names, check)


def _declared(value: Any, inherited: FieldInfo | None) -> FieldInfo:
    if isinstance(value, FieldInfo):
        return value
    return inherited or FieldInfo(value) if value is REQUIRED else FieldInfo(value)


def _converted(name: str, hint: Any, value: Any) -> Any:
    """Returns a given value in the declared type: nested settings from dictionaries, tuples from lists."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _converted(name, next(one for one in inner if one is not type(None)), value)
    if origin is Literal and value not in inner:
        raise ValidationError(f"{name}: {value!r}; allowed are {', '.join(map(repr, inner))}")
    if origin is tuple:
        return tuple(value)
    if isinstance(hint, type) and issubclass(hint, BaseModel) and isinstance(value, dict):
        return hint.model_validate(value)
    return value


def install() -> None:
    """Makes this module `pydantic` for the imports that follow, where there is none."""
    try:
        importlib.import_module("pydantic")
    except ImportError:
        module = types.ModuleType("pydantic")
        names = {"BaseModel": BaseModel, "ConfigDict": dict, "Field": FieldInfo, "ValidationError": ValidationError}
        module.__dict__.update(names | {"model_validator": model_validator, "field_validator": field_validator})
        sys.modules["pydantic"] = module
