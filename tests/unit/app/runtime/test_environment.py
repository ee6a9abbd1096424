"""Variables: lists and mappings as people write them, and names that set nothing."""

import os

import pytest

from app.domain.errors import ConfigurationError
from app.runtime.settings import Settings


@pytest.fixture(autouse=True)
def _no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EXPUNGE_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variable", "text", "found"),
    [
        ("EXPUNGE_ALLOWED_FACTORIES", "nets:build, nets:other,", ["nets:build", "nets:other"]),
        ("EXPUNGE_ALLOWED_FACTORIES", '["nets:build"]', ["nets:build"]),
        ("EXPUNGE_ALLOWED_FACTORIES", "", []),
        ("EXPUNGE_TRUSTED_PROXIES", "10.0.0.0/8,::1", ["10.0.0.0/8", "::1/128"]),
        (
            "EXPUNGE_WITNESSES",
            "https://a.example=n+1+YQ==,https://b.example/w=m+2+Yg==",
            ["https://a.example/ n+1+YQ==", "https://b.example/w m+2+Yg=="],
        ),
        ("EXPUNGE_WITNESSES", '{"https://a.example/?x=1,2": "k"}', ["https://a.example/?x=1,2 k"]),
        (
            "EXPUNGE_OIDC_SCOPES",
            "desk=forget:write,ml=models:read,desk=forget:read",
            ["desk forget:write forget:read", "ml models:read"],
        ),
    ],
)
def test_lists_and_mappings(
    variable: str, text: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    value = getattr(Settings(), variable.removeprefix("EXPUNGE_").lower())
    if isinstance(value, dict):
        listed = [(key, v if isinstance(v, tuple) else (v,)) for key, v in value.items()]
        assert [" ".join(map(str, (key, *values))) for key, values in listed] == found
    else:
        assert [str(item) for item in value] == found


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("EXPUNGE_PORT", "eighty", "EXPUNGE_PORT: Input should be a valid integer"),
        (
            "EXPUNGE_PROT",
            "80",
            "EXPUNGE_PROT: there is no such setting; did you mean EXPUNGE_PORT?",
        ),
        ("expunge_key_stor_dir", "k", "did you mean EXPUNGE_KEY_STORE_DIR?"),
        ("EXPUNGE_QQQQQQ", "1", "EXPUNGE_QQQQQQ: there is no such setting; the documentation"),
        ("EXPUNGE_WITNESSES", '{"https://a', "EXPUNGE_WITNESSES: is not valid JSON"),
        ("EXPUNGE_WITNESSES", "https://a.example", "EXPUNGE_WITNESSES: must be NAME=VALUE pairs"),
        ("EXPUNGE_WITNESSES", "https://a.example=k,https://a.example=l", "same name twice"),
        ("EXPUNGE_OIDC_SCOPES", "desk=everything", "EXPUNGE_OIDC_SCOPES: Input should be 'forget"),
        ("EXPUNGE_OIDC_ISSUER", "https://a.example", "EXPUNGE_OIDC_ISSUER: belongs together with"),
        ("EXPUNGE_TRUSTED_PROXIES", "10.0.0.0/8,mars", "EXPUNGE_TRUSTED_PROXIES: value is not"),
        ("EXPUNGE_VAULT_KEY", "expunge", "EXPUNGE_VAULT_KEY: needs EXPUNGE_VAULT_URL"),
        ("EXPUNGE_VAULT_URL", "http://vault.example", "EXPUNGE_VAULT_URL: must be an https://"),
    ],
)
def test_a_wrong_setting_is_one_line_with_its_name(
    variable: str, text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_each_wrong_one_has_its_line_and_no_value_is_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EXPUNGE_PORT", "secret-1")
    monkeypatch.setenv("EXPUNGE_METRICS_PUBLIC", "secret-2")
    monkeypatch.setenv("EXPUNGE_S3_SECRT_KEY", "secret-3")
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    lines = str(caught.value).splitlines()
    assert {line.partition(":")[0] for line in lines} == {
        "EXPUNGE_S3_SECRT_KEY",
        "EXPUNGE_PORT",
        "EXPUNGE_METRICS_PUBLIC",
    }
    assert "secret-" not in str(caught.value) + repr(caught.value.__cause__)


def test_a_misspelt_file_of_a_secret_is_refused_too(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPUNGE_SECRETS_DIR", str(tmp_path))
    (tmp_path / "expunge_databse_url").write_text("postgresql://")
    (tmp_path / "postgres_password").write_text("another program's")
    with pytest.raises(ConfigurationError, match="did you mean EXPUNGE_DATABASE_URL"):
        Settings()


def test_variables_that_are_no_settings_but_ours_are_let_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("EXPUNGE_TEST_X", "EXPUNGE_BENCH_DATA", "EXPUNGE_PUBLISH", "_EXPUNGE_COMPLETE"):
        monkeypatch.setenv(name, "1")
    assert Settings().port == 8100
