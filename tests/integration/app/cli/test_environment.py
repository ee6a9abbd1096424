"""Commands under odd locales, proxies and certificates: they work, or name the variable."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.runtime.outgoing import Retry


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"SSL_CERT_FILE": "/no/such/file"}, "SSL_CERT_FILE names no certificates"),
        ({"SSL_CERT_FILE": __file__}, "SSL_CERT_FILE names no certificates"),
        ({"SSL_CERT_DIR": "/no/such/folder"}, "SSL_CERT_DIR names no certificates"),
        ({"HTTP_PROXY": "socks5://127.0.0.1:9"}, "HTTP_PROXY must be the URL of an HTTP proxy"),
        ({"ALL_PROXY": "ftp://127.0.0.1:9"}, "ALL_PROXY must be the URL of an HTTP proxy"),
        ({"http_proxy": "http://[::1"}, "HTTP_PROXY must be the URL of an HTTP proxy"),
        ({"HTTP_PROXY": "127.0.0.1:9"}, "cannot be reached"),
        ({"NO_PROXY": "*.local,[::1],10.0.0.0/8, ,http://x"}, "cannot be reached"),
        ({"NO_PROXY": "fe80::/10,[::1]:80"}, "cannot be reached"),
    ],
)
def test_the_network_is_used_as_it_is_said_to_be(
    variables: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = {"EXPUNGE_API_URL": "http://127.0.0.1:9", "EXPUNGE_API_KEY": "key"}
    monkeypatch.setattr("app.client.client.Retry", partial(Retry, attempts=1))
    for name, value in (service | variables).items():
        monkeypatch.setenv(name, value)
    ended = CliRunner().invoke(app, ["requests"])
    assert (ended.exit_code, len(ended.stderr.splitlines())) == (1, 1), ended.stderr
    assert says in ended.stderr


@pytest.mark.parametrize("locale", ["C", "POSIX", "de_DE.ISO-8859-1"])
def test_files_are_utf_8_in_every_locale(tmp_path: Path, locale: str) -> None:
    (tmp_path / "rows.csv").write_text("id,naïve\na,Zoë\n", encoding="utf-8")
    plain = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = "dataset columns rows.csv --record-id id --write types.json"
    ended = subprocess.run(
        [sys.executable, "-m", "app.cli", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4]), **plain},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "naïve" in (tmp_path / "types.json").read_text(encoding="utf-8")
