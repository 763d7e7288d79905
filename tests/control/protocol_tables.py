"""Writes the tables of PROTOCOL.md from the contract: run it after a change of the contract."""

import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

import myna.control
from myna.control import codec, contract
from myna.control.errors import CODES

PROTOCOL = Path(myna.control.__file__).parent / "PROTOCOL.md"


def type_words(info: inspect.Type) -> str:
    """A type in the page's words; structs by their names."""
    match info:
        case inspect.StructType():
            return f"[{info.cls.__name__}](#{info.cls.__name__.lower()})"
        case inspect.UnionType():
            floats = any(isinstance(each, inspect.FloatType) for each in info.types)
            kept = [each for each in info.types if not (floats and isinstance(each, inspect.IntType))]
            return " or ".join(type_words(each) for each in kept)
        case inspect.VarTupleType():
            limit = f", at most {info.max_length}" if info.max_length is not None else ""
            return f"list of {type_words(info.item_type)}{limit}"
        case inspect.DictType():
            return f"map of text to {type_words(info.value_type)}"
        case inspect.NoneType():
            return "null"
        case inspect.AnyType():
            return "any"
        case _:
            return codec.describe(info)


def default_words(field: inspect.Field) -> str:
    """A field's default in the page's words."""
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    if isinstance(field.default, msgspec.Struct):
        return "all defaults"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def messages() -> list[type[msgspec.Struct]]:
    """Every struct of the wire, in the order in which methods and events lead to it."""
    found: list[type[msgspec.Struct]] = []

    def visit(info: inspect.Type) -> None:
        if isinstance(info, inspect.StructType):
            if info.cls in found:
                return
            found.append(info.cls)
            for field in info.fields:
                visit(field.type)
        elif isinstance(info, inspect.UnionType):
            for each in info.types:
                visit(each)
        elif isinstance(info, inspect.VarTupleType):
            visit(info.item_type)
        elif isinstance(info, inspect.DictType):
            visit(info.value_type)

    for asked, answered in contract.METHODS.values():
        visit(inspect.type_info(asked))
        visit(inspect.type_info(answered))
    for kind in contract.EVENT_TYPES.values():
        visit(inspect.type_info(kind))
    return found


def tables() -> dict[str, str]:
    """The generated parts of the page by their marks."""

    def link(kind: type[Any]) -> str:
        return f"[{kind.__name__}](#{kind.__name__.lower()})"

    methods = ["| method | request | reply |", "|---|---|---|"]
    methods += [f"| `{name}` | {link(asked)} | {link(told)} |" for name, (asked, told) in contract.METHODS.items()]
    events = ["| topic | message |", "|---|---|"]
    events += [f"| `{topic}` | {link(kind)} |" for topic, kind in contract.EVENT_TYPES.items()]
    errors = ["| code | exit code |", "|---|---|"]
    errors += [f"| `{code}` | {int(number)} |" for code, number in CODES.items()]
    parts = []
    for kind in messages():
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        said = re.sub(r"\s*\n\s*", " ", (kind.__doc__ or "").strip())
        parts.append(f"### {kind.__name__}\n\n{said}\n")
        if info.fields:
            parts.append("| field | type | default |\n|---|---|---|")
            parts += [
                f"| `{field.encode_name}` | {type_words(field.type)} | {default_words(field)} |"
                for field in info.fields
            ]
            parts.append("")
    return {
        "methods": "\n".join(methods),
        "events": "\n".join(events),
        "errors": "\n".join(errors),
        "messages": "\n".join(parts).rstrip(),
    }


def filled(page: str) -> str:
    """The page with its generated parts as the contract has them now."""
    for name, text in tables().items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page, count = mark.subn(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
        if count != 1:
            raise ValueError(f"the page has {count} places for {name}")
    return page


if __name__ == "__main__":
    PROTOCOL.write_text(filled(PROTOCOL.read_text("utf-8")), "utf-8")
