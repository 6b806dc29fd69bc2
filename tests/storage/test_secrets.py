"""Secrets by reference: from the environment, or from a file that others cannot read; what was read is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.storage.redaction import address, hide, password_of, without_secrets
from headstone.storage.secrets import is_reference, resolved, resolved_setting


def test_a_reference_stands_for_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("hush-file\n")
    file.chmod(0o600)
    monkeypatch.setenv("HUSH", "hush-env")
    assert (resolved(f"file:{file}"), resolved("env:HUSH"), resolved("plain")) == ("hush-file", "hush-env", "plain")
    texts = ("env:A", "file:/a", "file:///a", "a", "sqlite:///a")
    assert [text for text in texts if is_reference(text)] == ["env:A", "file:/a"]
    assert without_secrets("told: hush-file and hush-env") == "told: *** and ***"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o444])
def test_a_file_that_everybody_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("hush-open")
    file.chmod(mode)
    with pytest.raises(UsageError, match=rf"secret can be read by everybody \(mode {mode:o}\).* chmod 600") as error:
        resolved(f"file:{file}")
    assert "hush" not in str(error.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the environment has no HEADSTONE_NOTHING"):
        resolved("env:HEADSTONE_NOTHING")
    with pytest.raises(UsageError, match="nothing: No such file"):
        resolved(f"file:{tmp_path / 'nothing'}")


def test_what_was_hidden_is_not_shown_whoever_words_it() -> None:
    resolved_setting("secret_access_key", "hush-given")
    hide("abc")
    assert without_secrets("key hush-given, abc") == "key ***, abc"
    assert without_secrets("at postgresql://me:pass@host/lake") == "at postgresql://me:***@host/lake"
    assert (password_of("postgresql://me:pass@host/lake"), password_of("s3://bucket")) == ("pass", None)
    assert address("postgresql://me:pass@host/lake") == "postgresql://me:***@host/lake"
