"""What the docstring of a class says of its attributes, for pages and for OpenAPI."""

import inspect
import re

_ENTRY = re.compile(r"    (\w+(?:, \w+)*): (.*)")


def attributes_of(described: type) -> dict[str, str]:
    """Return a text for each attribute that the ``Attributes:`` of a docstring list.

    A text that belongs to several attributes is returned for each of them.
    """
    _, _, listed = (inspect.getdoc(described) or "").partition("\nAttributes:\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in listed.splitlines():
        if line and not line.startswith(" "):
            break
        if entry := _ENTRY.fullmatch(line):
            names = entry[1].split(", ")
            texts |= dict.fromkeys(names, entry[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}".strip() for name in names}
    return texts
