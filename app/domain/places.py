"""Where an import's files are: URLs of Parquet files, and the prefixes that an operator allows.

A URL is taken apart once, strictly, and never put together again from text that was not looked at:
whatever could mean two things to two readers is refused. A path is decoded once; no segment of it
may be empty, ``.`` or ``..``, or hold a separator, a control character or, for https, a percent
sign, which a server may decode again. So a place lies under a prefix if its segments begin with the
prefix's.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import quote, unquote

from app.domain.errors import InvalidInputError, PlaceNotAllowedError

SCHEMES: Final = ("s3", "gs", "file", "https")
MOST_URL_CHARACTERS: Final = 2000
MOST_WILDCARDS: Final = 8
_WILDCARDS: Final = frozenset("*?")
_BUCKET: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){1,220}[a-z0-9]")
_HOST: Final = re.compile(r"(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class Place:
    """A file, a folder, or all files that a pattern fits.

    Attributes:
        scheme: one of ``SCHEMES``.
        host: the bucket; of https the host, with its port unless that is 443; of files nothing.
        segments: the decoded path. ``*`` and ``?`` in one make the place a pattern.
        is_folder: whether the path ends with a slash.
    """

    scheme: str
    host: str
    segments: tuple[str, ...]
    is_folder: bool = False

    @classmethod
    def parse(cls, url: str) -> "Place":
        """Take a URL apart.

        Raises:
            InvalidInputError: it is none of these, or says more than a place: a user, a query, a
                fragment, a way up.
        """
        if len(url) > MOST_URL_CHARACTERS:
            raise InvalidInputError(f"url must have at most {MOST_URL_CHARACTERS} characters")
        scheme, sign, rest = url.partition("://")
        scheme = scheme.lower()
        if not sign or scheme not in SCHEMES:
            raise InvalidInputError("url must begin with s3://, gs://, file:// or https://")
        if "#" in rest:
            raise InvalidInputError("url must have no fragment; in a name, # is %23")
        host, _, path = rest.partition("/")
        host = _host(scheme, host)
        is_folder = path.endswith("/") or not path
        raw = path.removesuffix("/").split("/") if path.strip("/") else []
        segments = tuple(_segment(scheme, part) for part in raw)
        if sum(map("".join(segments).count, _WILDCARDS)) > MOST_WILDCARDS:
            raise InvalidInputError(f"url must have at most {MOST_WILDCARDS} wildcards, * and ?")
        return cls(scheme, host, segments, is_folder)

    @property
    def url(self) -> str:
        """The place in its one spelling."""
        path = "/".join(quote(segment, safe="*?!$&'()+,;=:@") for segment in self.segments)
        slash = "/" if self.is_folder and self.segments else ""
        return f"{self.scheme}://{self.host}/{path}{slash}"

    @property
    def is_pattern(self) -> bool:
        """Whether it fits any number of files."""
        return any(map(_is_pattern, self.segments))

    @property
    def folder(self) -> tuple[str, ...]:
        """The segments before the first that is a pattern."""
        for count, segment in enumerate(self.segments):
            if _is_pattern(segment):
                return self.segments[:count]
        return self.segments

    def fits(self, segments: Sequence[str]) -> bool:
        """Return whether a pattern fits a file's path; wildcards never match a separator.

        ``fnmatch`` fixes what one ``*`` stands for before it looks at the next, so the time grows
        only with the product of the lengths. A bracket stands for itself.
        """
        return len(segments) == len(self.segments) and all(
            fnmatchcase(segment, pattern.replace("[", "[[]"))
            for pattern, segment in zip(self.segments, segments, strict=True)
        )

    def lies_under(self, prefix: "Place") -> bool:
        """Return whether all that this place may mean is under a prefix."""
        here = (self.scheme, self.host, self.segments[: len(prefix.segments)])
        return here == (prefix.scheme, prefix.host, prefix.segments)


def prefix_of(url: str) -> Place:
    """Return a place under which all may be imported; no pattern, and no whole machine."""
    place = Place.parse(url)
    if place.is_pattern:
        raise InvalidInputError("a prefix has no * or ?: all that is under it is allowed")
    if place.scheme == "file" and not place.segments:
        raise InvalidInputError("file:/// is the whole machine: name a folder")
    return place


def require_importable(place: Place, prefixes: Iterable[str]) -> Place:
    """Return the prefix of the operator's under which a place lies.

    Raises:
        PlaceNotAllowedError: there is none.
        InvalidInputError: https cannot list a folder.
    """
    if place.scheme == "https" and place.is_folder:
        raise InvalidInputError("https: url must name one file: https cannot list a folder")
    for prefix in map(prefix_of, prefixes):
        if place.lies_under(prefix):
            return prefix
    raise PlaceNotAllowedError


def _host(scheme: str, host: str) -> str:
    if "@" in host or "%" in host or "?" in host:
        raise InvalidInputError("url must have no user, password or query")
    if scheme == "file":
        if host:
            raise InvalidInputError("a file's url has three slashes: file:///folder/file.parquet")
        return host
    if scheme in ("s3", "gs"):
        if not _BUCKET.fullmatch(host):
            raise InvalidInputError("url names no bucket")
        return host
    spelt = host.lower()
    match = _HOST.fullmatch(spelt)
    if match is None or (match[1] is not None and not 0 < int(match[1]) < 1 << 16):
        raise InvalidInputError("url names no host")
    return spelt.removesuffix(":443")


def _segment(scheme: str, raw: str) -> str:
    try:
        segment = unquote(raw, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInputError("url is not UTF-8 when it is decoded") from error
    if segment in ("", ".", ".."):
        raise InvalidInputError("url must have no empty segment and no . or .. in its path")
    if _ESCAPE.search(raw) or not segment.isprintable() or set(segment) & set("/\\"):
        raise InvalidInputError("url must have no separator or control character in a segment")
    if scheme == "https" and set(segment) & {"%", *_WILDCARDS}:
        raise InvalidInputError("https: url must name one file, without %, * and ? in its name")
    if "**" in segment:
        raise InvalidInputError("url must have no **: write a folder for all that is below it")
    return segment


def _is_pattern(segment: str) -> bool:
    return not _WILDCARDS.isdisjoint(segment)
