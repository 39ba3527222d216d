"""Secrets are looked up where the log is made, and shown nowhere."""

import os
import stat
from pathlib import Path

import pytest

from client.spark.options import OptionError, with_secrets
from client.spark.source.data_source import Refusals

ENVIRON = {"PASSWORD": "s3cret", "USER": "me"}


def test_references_are_replaced_in_the_options_of_a_log() -> None:
    """Also several in one value, as in a JAAS configuration."""
    given = {
        "kafka.sasl.password": "{env:PASSWORD}",
        "log.url": "x://{env:USER}:{file:/run/secrets/p}@h",
        "kafka.plain": "{not:one} {} {env}",
    }

    assert with_secrets(given, environ=ENVIRON, read_text=lambda path: f"<{path}>\n") == {
        "kafka.sasl.password": "s3cret",
        "log.url": "x://me:</run/secrets/p>@h",
        "kafka.plain": "{not:one} {} {env}",
    }


def test_other_options_are_left_alone() -> None:
    """A group may be named so."""
    assert with_secrets({"group": "{env:USER}"}, environ=ENVIRON) == {"group": "{env:USER}"}


@pytest.mark.parametrize("reference", ["env:NOT_THERE", "file:/not/there"])
def test_a_missing_secret_is_named_without_the_rest(reference: str) -> None:
    """The rest of the value may be a secret itself."""
    given = {"kafka.sasl.jaas.config": f"p=s3cret {{{reference}}}"}

    with pytest.raises(OptionError, match=r"'kafka\.sasl\.jaas\.config' refers to") as caught:
        with_secrets(given, environ=ENVIRON)
    assert reference in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_refusal_reaches_its_reader_once(tmp_path: Path) -> None:
    """Another reader, or the same one later, has nothing to do with it."""
    folder = tmp_path / "notes"
    assert Refusals(folder).reason("spark-1") is None
    Refusals(folder).refuse("spark-1", "it is stateful")

    assert Refusals(folder).reason("spark-2") is None
    assert Refusals(folder).reason("spark-1") == "it is stateful"
    assert Refusals(folder).reason("spark-1") is None
    assert list(folder.iterdir()) == []
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU


def test_a_folder_of_somebody_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else any user of the machine could end our queries."""
    Refusals(tmp_path).refuse("spark-1", "for fun")
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)

    assert Refusals(tmp_path).reason("spark-1") is None
