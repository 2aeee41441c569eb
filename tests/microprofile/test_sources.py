"""Where configuration comes from, and which source is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from everkeel.microprofile.config import Configuration
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.sources import EnvironmentSource, MappingSource, PropertiesSource

KEY = "Retry/maxRetries"


def test_a_mapping_comes_before_the_environment_and_that_before_a_file(tmp_path: Path) -> None:
    file = tmp_path / "microprofile-config.properties"
    file.write_text("Retry/maxRetries=1\nTimeout/value=1\nBulkhead/value=1\n", encoding="utf-8")
    environment = EnvironmentSource({"RETRY_MAXRETRIES": "2", "TIMEOUT_VALUE": "2"})
    configuration = Configuration(file, environment, {"Retry/maxRetries": "3"})
    texts = [configuration.find(key) for key in (KEY, "Timeout/value", "Bulkhead/value")]
    assert [found.text for found in texts if found] == ["3", "2", "1"]


def test_a_source_can_say_its_own_ordinal(tmp_path: Path) -> None:
    file = tmp_path / "strong.properties"
    file.write_text("config_ordinal=500\nRetry/maxRetries=1\n", encoding="utf-8")
    found = Configuration(file, {KEY: "3"}).find(KEY)
    assert found is not None
    assert (found.text, found.source) == ("1", f"properties file {str(file)!r}")


def test_the_environment_says_its_ordinal_in_capitals() -> None:
    assert EnvironmentSource({"CONFIG_ORDINAL": "7"}).ordinal == 7


def test_of_equal_ordinals_the_name_decides() -> None:
    b, a = MappingSource({KEY: "b"}, name="b"), MappingSource({KEY: "a"}, name="a")
    found = Configuration(b, a).find(KEY)
    assert found is not None
    assert found.text == "a"


def test_a_wrong_ordinal_is_an_error() -> None:
    with pytest.raises(FaultToleranceDefinitionException, match="mapping: config_ordinal must be a whole number"):
        MappingSource({"config_ordinal": "high"})


def test_numbers_and_booleans_of_a_mapping_are_text() -> None:
    source = MappingSource({"a": 1, "b": True, "c": 0.5, "d": False})
    assert [source.get(key) for key in "abcd"] == ["1", "true", "0.5", "false"]


@pytest.mark.parametrize(("values", "message"), [({"a": [1]}, r"a must be text"), ({1: "a"}, "keys must be text")])
def test_what_is_no_text_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(FaultToleranceDefinitionException, match=message):
        MappingSource(values)


def test_a_mapping_is_read_once() -> None:
    values = {"a": "1"}
    source = MappingSource(values)
    values["a"] = "2"
    assert source.get("a") == "1"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_bytes(b"\xef\xbb\xbfa=\xc3\xa9")
    assert PropertiesSource(file).get("a") == "é"


@pytest.mark.parametrize("written", [b"a=\xe9", b"a=\\u12"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, written: bytes) -> None:
    file = tmp_path / "broken.properties"
    file.write_bytes(written)
    with pytest.raises(FaultToleranceDefinitionException, match=r"broken\.properties'?: cannot be read"):
        PropertiesSource(str(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FaultToleranceDefinitionException, match=r"gone\.properties'?: cannot be read: No such file"):
        PropertiesSource(tmp_path / "gone.properties")


def test_a_source_of_ones_own_takes_part() -> None:
    class Server:
        name, ordinal = "configuration server", 1000

        def get(self, key: str, /) -> str | None:
            return "9" if key == KEY else None

    found = Configuration(Server(), {KEY: "1"}).find(KEY)
    assert found is not None
    assert (found.text, found.source) == ("9", "configuration server")


def test_set_to_nothing_hides_weaker_sources_and_is_no_value() -> None:
    assert Configuration({KEY: " "}, EnvironmentSource({"RETRY_MAXRETRIES": "2"})).find(KEY) is None
