"""``expunge verify``: numbered steps, and the number of the one that failed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.evidence.certificates.signing import StatementSigner
from app.ledger.certificates import bundles, issuing
from tests.support.trust import trust, trust_in
from tests.support.weights import WEIGHTS
from tests.support.workshop import Workshop

runner = CliRunner()


class TestVerify:
    @pytest.fixture
    def files(self, workshop: Workshop, tmp_path: Path) -> dict[str, Path]:
        version = workshop.train()
        with workshop.transaction() as session:
            certificate = issuing.certificate(session, version.certificate_id)
            bundle = bundles.bundle_of(session, certificate, signer=workshop.services.signer)
        files = {name: tmp_path / name for name in ("bundle", "weights", "trusted")}
        files["bundle"].write_text(json.dumps(bundle))
        files["weights"].write_bytes(WEIGHTS)
        files["trusted"].write_bytes(trust_in(workshop.services))
        return files

    def _run(self, files: dict[str, Path]) -> tuple[int, str]:
        options = ["--weights", str(files["weights"]), "--trusted", str(files["trusted"])]
        answer = runner.invoke(app, ["verify", str(files["bundle"]), *options])
        assert answer.exception is None or isinstance(answer.exception, SystemExit)
        return answer.exit_code, answer.stdout

    def test_an_honest_certificate_exits_0_and_prints_each_step(self, files: dict) -> None:
        code, printed = self._run(files)

        assert code == 0
        steps = [line.split()[2] for line in printed.splitlines() if ". ok" in line]
        names = ["bundle", "signature", "statement", "digest", "weights", "guarantee", "log"]
        assert steps == names
        assert "The reference is: the same pipeline" in printed
        assert printed.splitlines()[-1] == "the certificate holds"

    def test_a_changed_file_exits_1_and_names_the_step(self, files: dict, tmp_path: Path) -> None:
        stranger = StatementSigner.from_file(tmp_path / "stranger.pem", create=True)
        changes = {
            "weights": (WEIGHTS + b"?", "digest"),
            "bundle": (b"{}", "bundle"),
            "trusted": (trust(stranger), "signature"),
        }
        for name, (content, step) in changes.items():
            honest = files[name].read_bytes()
            files[name].write_bytes(content)
            code, printed = self._run(files)
            assert (code, printed.splitlines()[-1].split()[1:3]) == (1, ["FAIL", f"{step}:"])
            files[name].write_bytes(honest)
