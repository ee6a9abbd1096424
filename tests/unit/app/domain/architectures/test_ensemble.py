"""Networks in words."""

import pytest

from app.domain.architectures.ensemble import (
    Member,
    members_by_version,
    members_in_words,
    network_in_words,
)

OWN = {"name": "custom", "factory": "package:secret"}


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ({"name": "mlp", "options": {"hidden": [3]}}, "mlp"),
        ({"name": "ensemble", "members": 8, "of": {"name": "cnn"}}, "8 members of cnn"),
        ({"name": "ensemble", "members": 1, "of": {"name": "cnn"}}, "1 member of cnn"),
        (OWN, "the operator's own network"),
        (
            {"name": "ensemble", "members": 3, "of": OWN},
            "3 members of the operator's own network",
        ),
    ],
)
def test_a_network_is_named_without_the_operators_code(architecture, words):
    assert network_in_words(architecture) == words


def members(*versions):
    return [Member("0" * 64, version) for version in versions]


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ((2, 2, 2), "3 members, all trained in this version"),
        ((2, 1, 1), "3 members, 1 trained anew in this version, 2 in version 1"),
        ((0, 1, 0), "3 members, 0 trained anew in this version, 1 in version 1, 2 in version 0"),
    ],
)
def test_who_was_trained_when_is_counted(versions, words):
    assert members_in_words(members(*versions), version=2) == words


def test_members_are_listed_by_the_newest_version_first():
    assert members_by_version(members(1, 3, 1, 2)) == {3: [1], 2: [3], 1: [0, 2]}
    assert list(members_by_version(members(1, 3, 2))) == [3, 2, 1]
