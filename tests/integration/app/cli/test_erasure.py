"""``expunge erase-check``."""

from typer.testing import CliRunner

from app.cli.main import app
from app.services import Services
from tests.support.workshop import DATASET, Workshop

runner = CliRunner()


def test_a_completed_request_passes_and_a_left_id_does_not(
    workshop: Workshop, services: Services
) -> None:
    workshop.forget("record-12")
    services.clean_up()
    answer = runner.invoke(app, ["erase-check", "record-12", "--dataset", DATASET])
    assert answer.exit_code == 0, answer.output
    assert "by design: record " in answer.stdout
    assert answer.stdout.endswith("2 by design, 0 pending, 0 unsearched, 0 fault\nno fault\n")

    logs = services.settings.data_dir / "log"
    logs.mkdir(exist_ok=True)
    (logs / "redis.log").write_text("record-12")
    answer = runner.invoke(app, ["erase-check", "-", "--dataset", DATASET], input="record-12\n")
    assert answer.exit_code == 1
    assert answer.stderr == "1 fault(s)\n"
    assert "redis.log: holds the id, or a longer one that contains it\n" in answer.stdout
    assert "record-12" not in answer.output


def test_an_id_that_was_never_pushed_is_not_taken_for_erased(workshop: Workshop) -> None:
    answer = runner.invoke(app, ["erase-check", "Record-12", "--dataset", DATASET])
    assert answer.exit_code == 0, answer.output
    assert "nothing is known of this id: is it spelled as in the records?" in answer.stdout


def test_an_unknown_dataset_is_told_in_words(services: Services) -> None:
    answer = runner.invoke(app, ["erase-check", "somebody", "--dataset", "nothing"])
    assert answer.exit_code == 1
    assert answer.stderr == "error: no dataset named 'nothing'\n"
