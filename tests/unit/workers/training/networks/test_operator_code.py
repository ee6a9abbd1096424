"""What is told of the operator's own exceptions: everything, or only where."""

import sys

import pytest
import torch
from torch.nn.functional import embedding

from app.domain.errors import PlanError, RunFailedError
from workers.training.networks.operator_code import called, place_of

SECRET = "alice@example.com"


def quoting(value=SECRET):
    try:
        return {}[value]
    except KeyError as error:
        raise ValueError(f"cannot use {value}\x00\x1b[2J") from error


def failure_of(work, **how):
    with pytest.raises(RunFailedError) as caught:
        called("the code", work, **how)
    return caught.value


def test_in_full_it_is_the_traceback_with_its_causes():
    said = str(failure_of(quoting, in_full=True, advice="mend it"))
    first, _, rest = said.partition("\n\n")
    line = quoting.__code__.co_firstlineno + 4
    assert first == f"the code raised ValueError in test_operator_code.py, line {line}: mend it"
    assert f"ValueError: cannot use {SECRET}" in rest
    assert f"KeyError: '{SECRET}'" in rest
    assert "in quoting" in rest
    assert 'operator_code.py", line' in rest
    assert "in called" not in rest


def test_advice_is_given_only_where_it_fits():
    assert "mend it" not in str(failure_of(quoting, advice="mend it", on=TypeError))
    assert str(failure_of(lambda: quoting(1, 2), advice="mend it", on=TypeError)).endswith(
        "mend it"
    )


def test_otherwise_it_is_type_file_and_line():
    error = failure_of(quoting)
    assert SECRET not in str(error)
    assert "ValueError in test_operator_code.py, line" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("in_full", [True, False])
def test_nothing_hangs_on_the_exception(in_full):
    error = failure_of(quoting, in_full=in_full)
    assert (error.__cause__, error.__context__) == (None, None)


def test_what_cannot_be_stored_or_would_command_a_terminal_is_spelt_out():
    said = str(failure_of(quoting, in_full=True))
    assert "\x00" not in said
    assert "\x1b" not in said
    assert r"\x00\x1b[2J" in said


def test_values_of_locals_are_never_told():
    def failing():
        kept = SECRET.upper()
        raise ValueError(len(kept))

    assert SECRET.upper() not in str(failure_of(failing, in_full=True))


def test_a_long_text_keeps_its_end():
    def failing():
        raise ValueError("x" * 50_000 + "the end")

    said = str(failure_of(failing, in_full=True))
    assert said.endswith("the end")
    assert len(said) < 20_000


def test_a_factory_that_exits_does_not_end_the_worker():
    assert "SystemExit" in str(failure_of(lambda: sys.exit(3)))


def test_our_own_errors_pass():
    def refusing():
        raise PlanError("ours")

    with pytest.raises(PlanError, match="ours"):
        called("the code", refusing)


def test_a_place_in_a_library_names_the_line_that_led_there():
    with pytest.raises(IndexError) as caught:
        embedding(torch.tensor([7]), torch.zeros(2, 2))
    assert place_of(caught.value).startswith("IndexError in functional.py, line ")
    assert ", called from test_operator_code.py, line " in place_of(caught.value)
