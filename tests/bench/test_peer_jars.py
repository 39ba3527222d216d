"""Which jars the peers need, and that no other ones are used."""

from hashlib import sha256
from pathlib import Path

import pytest

from bench import peer_jars
from bench.peer_jars import (
    ALL_ROOTS,
    LOCK,
    Jar,
    class_path,
    lock_text,
    parse_list,
    parse_lock,
    pom,
    version_of,
    wrong_jars,
)

JARS = [Jar("kafka", "org.b:b:2.0", sha256(b"b").hexdigest()), Jar("kafka", "a:a:1", "00")]


def test_a_lock_file_is_read_as_it_was_written() -> None:
    """And sorted, so that a change of one jar is a change of one line."""
    assert parse_lock(lock_text(JARS)) == sorted(JARS)


def test_the_lock_file_holds_every_root_and_a_hash_for_each_jar() -> None:
    """A root that isn't locked would be missing at every start."""
    jars = parse_lock(LOCK.read_text(encoding="utf-8"))
    for program, roots in ALL_ROOTS.items():
        assert set(roots) <= {jar.coordinates for jar in jars if jar.program == program}
    assert {len(jar.sha256) for jar in jars} == {64}
    assert len({(jar.program, jar.file_name) for jar in jars}) == len(jars)


def test_a_jar_that_is_missing_or_another_one_is_named(tmp_path: Path) -> None:
    """Whatever brought it: what runs is what was locked."""
    folder = tmp_path / "kafka"
    folder.mkdir()
    assert wrong_jars(JARS, tmp_path) == ["b-2.0.jar", "a-1.jar"]
    for jar in JARS:
        (folder / jar.file_name).write_bytes(b"b")
    assert wrong_jars(JARS, tmp_path) == ["a-1.jar"]


def test_a_program_with_a_wrong_jar_has_no_class_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is skipped, as if it were not there."""
    lock = tmp_path / "lock"
    lock.write_text(lock_text(JARS[:1]), encoding="utf-8")
    monkeypatch.setattr(peer_jars, "LOCK", lock)
    monkeypatch.setattr(peer_jars, "FOLDER", tmp_path)
    class_path.cache_clear()
    assert not class_path("kafka")
    jar = tmp_path / "kafka" / JARS[0].file_name
    jar.parent.mkdir()
    jar.write_bytes(b"b")
    class_path.cache_clear()
    assert class_path("kafka") == str(jar)
    class_path.cache_clear()


def test_what_is_fetched_is_what_was_locked_and_nothing_that_it_needs() -> None:
    """What they need is locked, too; a newer one that is resolved today is not wanted."""
    page = pom(["org.b:b:2.0"], transitive=False)
    assert "<groupId>org.b</groupId><artifactId>b</artifactId><version>2.0</version>" in page
    assert "<exclusion><groupId>*</groupId>" in page
    assert "exclusion" not in pom(["org.b:b:2.0"], transitive=True)


def test_jars_for_one_kind_of_machine_are_left_out() -> None:
    """They have a classifier, and need not be where the benchmark runs."""
    text = (
        "\nThe following files have been resolved:\n"
        "   org.b:b:jar:2.0:compile\n"
        "   io.c:c:jar:linux-x86_64:1.1:runtime\n"
    )
    assert parse_list(text) == ["org.b:b:2.0"]


def test_a_peers_version_is_that_of_its_first_root() -> None:
    """It stands in every result."""
    assert version_of("kafka").startswith("4.1.")
