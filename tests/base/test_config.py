"""Knobs: types, patches, environment, save and load."""

from __future__ import annotations

import threading

import pytest

from dynamo.base.config import Config, Knob, config


def make() -> Config:
    return Config(
        "test_config",
        [
            Knob("flag", True, "A flag.", ("DYNAMO_TEST_FLAG",)),
            Knob("count", 3, "A number.", ("DYNAMO_TEST_COUNT", "TORCH_TEST_COUNT")),
            Knob("ratio", 0.5, "A ratio."),
            Knob("folder", "", "A folder."),
        ],
    )


def test_write_and_read() -> None:
    settings = make()
    settings.count = 5
    assert settings.count == 5
    settings.ratio = 1
    assert settings.ratio == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("flag", 1), ("count", True), ("count", "3"), ("folder", 3), ("flag", None), ("ratio", "0.1")],
)
def test_wrong_type_names_the_knob(name: str, value: object) -> None:
    settings = make()
    with pytest.raises(TypeError, match=f"config.{name} takes"):
        setattr(settings, name, value)
    with pytest.raises(TypeError), settings.patch(**{name: value}):
        pass


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no such setting: cuont"):
        make().cuont = 3
    with pytest.raises(AttributeError, match="count"):
        _ = make().cuont


def test_patch_nests_and_ends_on_error() -> None:
    settings = make()
    with pytest.raises(KeyError), settings.patch(count=4):
        with settings.patch(flag=False):
            assert (settings.count, settings.flag) == (4, False)
        assert (settings.count, settings.flag) == (4, True)
        raise KeyError
    assert settings.count == 3


def test_patch_decorates_more_than_one_call() -> None:
    settings = make()

    @settings.patch(count=9)
    def read() -> int:
        return settings.count

    assert [read(), read(), settings.count] == [9, 9, 3]


def test_patch_is_seen_by_its_own_thread_only() -> None:
    settings, seen = make(), []
    with settings.patch(count=4):
        thread = threading.Thread(target=lambda: seen.append(settings.count))
        thread.start()
        thread.join()
    assert seen == [3]


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMO_TEST_FLAG", "off")
    monkeypatch.setenv("TORCH_TEST_COUNT", "7")
    assert (make().flag, make().count) == (False, 7)
    monkeypatch.setenv("DYNAMO_TEST_COUNT", "8")
    assert make().count == 8
    monkeypatch.setenv("DYNAMO_TEST_COUNT", "many")
    with pytest.raises(ValueError, match="DYNAMO_TEST_COUNT='many': count takes int"):
        make()


def test_snapshot_is_frozen_and_holds_patches() -> None:
    settings = make()
    with settings.patch(count=4):
        shot = settings.snapshot()
    assert shot["count"] == 4 and settings.count == 3
    with pytest.raises(TypeError):
        shot["count"] = 5  # type: ignore[index]


def test_save_and_load() -> None:
    settings = make()
    settings.count = 6
    other = make()
    other.load(settings.save())
    assert other.count == 6
    with pytest.raises(TypeError):
        other.load({"flag": False, "count": "x"})
    assert other.flag is True  # all or nothing


def test_every_knob_says_what_it_does_and_there_are_few() -> None:
    options = config.list_options()
    assert len(options) < 40
    assert all(sentence.endswith(".") for sentence in options.values()), options
