"""Every setting's check, with what its message must tell."""

import copy
import dataclasses
import inspect
import json
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.compression import Carry, Quantized, TopK
from dist_classicrl.errors import MissingExtraError, SettingsError, UnknownAttributeError
from dist_classicrl.rules import registry
from dist_classicrl.schedules import Constant, Exponential, Linear, PerVisit
from dist_classicrl.settings import ByRule, Settings

WHOLE = ("batch_size", "buffer_size", "prefetch_factor", "logical_workers", "n_envs", "sync_frequency")
REAL = {  # name: (one below what is allowed, one above or None)
    "discount_factor": (-0.01, 1.01),
    "compression_threshold": (-0.1, None),
    "replay_ratio": (-0.5, 2e6),
    "timeout": (0.5, 1e10),
    "heartbeat_interval": (0.005, 1e10),
    "heartbeat_timeout": (0.05, 1e10),
}
WHOLE_OR_NONE_AT_ALL = ("min_workers", "max_replacements")


@pytest.mark.parametrize("name", [*WHOLE, "state_size", "action_size"])
def test_whole_numbers(name):
    for good in (1, 7, np.int32(7)):
        value = getattr(Settings(**{name: good}), name)
        assert value == good and type(value) is int
    for bad in (0, -1, 1.5, 2.0, "3", True, math.nan, [1]):
        with pytest.raises(SettingsError, match=f"{name} must be a whole number of at least 1.*got "):
            Settings(**{name: bad})
    if name in ("state_size", "action_size"):
        assert getattr(Settings(**{name: None}), name) is None
    else:
        with pytest.raises(SettingsError, match=f"{name} must be a whole number"):
            Settings(**{name: None})


@pytest.mark.parametrize("name", REAL)
def test_real_numbers(name):
    low, high = REAL[name]
    others = {"heartbeat_interval": 0.01} if name == "heartbeat_timeout" else {}
    for good in (1, 1.0, np.float32(1.0)):
        value = getattr(Settings(**{name: good, **others}), name)
        assert value == 1.0 and type(value) is float
    for bad in (low, high or -1, math.nan, math.inf, -math.inf, "0.9", None, True):
        with pytest.raises(SettingsError, match=f"{name} must be a number .*got "):
            Settings(**{name: bad})


@pytest.mark.parametrize("name", WHOLE_OR_NONE_AT_ALL)
def test_numbers_of_ranks(name):
    for good in (0, 5, np.int32(3)):
        value = getattr(Settings(**{name: good}), name)
        assert value == good and type(value) is int
    for bad in (-1, 1.5, "3", True, None, math.nan):
        with pytest.raises(SettingsError, match=f"{name} must be a whole number of at least 0.*got "):
            Settings(**{name: bad})


@pytest.mark.parametrize("name", ["async_updates", "allow_singletons", "use_action_mask"])
def test_flags(name):
    for good in (True, False, np.bool_(True)):
        assert getattr(Settings(**{name: good}), name) is bool(good)
    for bad in (0, 1, "yes", [True]):
        with pytest.raises(SettingsError, match=f"{name} must be True or False.*got "):
            Settings(**{name: bad})
    assert Settings(use_action_mask=None).use_action_mask is None


def test_learning_rate():
    for good in (
        1.0,
        1,
        1e-9,
        np.float32(0.5),
        Linear(1.0, 0.001, 10),
        Exponential(1.0, 0.1, 9),
        PerVisit(0.6),
    ):
        Settings(learning_rate=good)
    assert Settings(learning_rate=0.2).learning_rate == Constant(0.2)
    for bad in (
        0,
        0.0,
        -0.1,
        1.0000001,
        2,
        Linear(0.5, 0.0, 10),
        Linear(1.5, 0.5, 10),
        Exponential(1.5, 0.5, 10),
    ):
        with pytest.raises(
            SettingsError, match="learning_rate must be above 0 and at most 1, got .*PerVisit"
        ):
            Settings(learning_rate=bad)
    with pytest.raises(SettingsError, match=r"got 2\.0\."):
        Settings(learning_rate=2)
    for bad in ("0.1", None, True, [0.1]):
        with pytest.raises(SettingsError, match="learning_rate must be a number or a schedule"):
            Settings(learning_rate=bad)
    for bad in (math.nan, math.inf):
        with pytest.raises(SettingsError, match="finite"):
            Settings(learning_rate=bad)


def test_epsilon():
    for good in (0, 0.0, 1, 1.0, Linear(1.0, 0.0, 10), Exponential(1.0, 0.1, 9)):
        Settings(epsilon=good)
    for bad in (-0.001, 1.001, Linear(1.0, -0.1, 5), Linear(2.0, 0.0, 5)):
        with pytest.raises(SettingsError, match="epsilon must be from 0 to 1, got .*epsilon=0.1"):
            Settings(epsilon=bad)
    with pytest.raises(SettingsError, match="epsilon cannot follow the visits.*Linear"):
        Settings(epsilon=PerVisit(0.7))
    with pytest.raises(SettingsError, match="epsilon must be a number or a schedule"):
        Settings(epsilon="0.1")


def test_choices():
    assert Settings(dtype=np.float32).dtype == "float32" and Settings(dtype="f8").dtype == "float64"
    for bad in ("float16", "int64", int, "nonsense", 3, object):
        with pytest.raises(SettingsError, match="dtype must be one of 'float64', 'float32', got "):
            Settings(dtype=bad)
    known = ", ".join(map(repr, registry.names()))
    with pytest.raises(SettingsError, match=f"algorithm must be one of {known}, got 'no_such_rule'"):
        Settings(algorithm="no_such_rule")
    with pytest.raises(SettingsError, match="communication_backend must be one of 'mpi', got 'gloo'"):
        Settings(communication_backend="gloo")
    with pytest.raises(
        SettingsError, match="'nccl' needs one GPU per rank.*Write communication_backend='mpi'"
    ):
        Settings(communication_backend="nccl")
    for good in ("continue", "replace", "abort"):
        assert Settings(on_failure=good).on_failure == good
    with pytest.raises(SettingsError, match="on_failure must be one of 'continue', 'replace', 'abort', got"):
        Settings(on_failure="restart")
    with pytest.raises(SettingsError, match="on_error must be one of 'raise', 'exclude', got 'ignore'"):
        Settings(on_error="ignore")
    assert Settings(sync_frequency="auto").sync_frequency == "auto"
    for bad in ("often", 0, None, 1.5):
        with pytest.raises(
            SettingsError, match='sync_frequency must be a whole number of at least 1, or "auto"'
        ):
            Settings(sync_frequency=bad)


def test_seed():
    assert Settings(seed=0).seed == 0 and Settings(seed=None).seed is None
    assert Settings(seed=2**63 - 1).seed == 2**63 - 1
    for bad in (-1, 1.0, "1", True):
        with pytest.raises(SettingsError, match="seed must be a whole number of at least 0"):
            Settings(seed=bad)
    # Ranks tell each other the seed in 64 bits.
    with pytest.raises(SettingsError, match="seed must be below 2"):
        Settings(seed=2**63)


def test_settings_that_contradict_each_other():
    Settings(compression_threshold=0.1)
    Settings(async_updates=False)
    Settings(heartbeat_interval=2.0, heartbeat_timeout=8.0)
    with pytest.raises(
        SettingsError, match="at least 4 times heartbeat_interval.*heartbeat_timeout=7.9 and "
    ):
        Settings(heartbeat_interval=2.0, heartbeat_timeout=7.9)
    Settings(on_error="exclude")
    with pytest.raises(SettingsError, match='on_error="exclude" has no place in the reproducible mode'):
        Settings(on_error="exclude", async_updates=False)
    with pytest.raises(SettingsError, match="compression_threshold has no place in the reproducible mode"):
        Settings(compression_threshold=0.1, async_updates=False)
    for lossy in ("top_k", Quantized(16)):
        with pytest.raises(SettingsError, match="has no place in the reproducible mode.*lossless"):
            Settings(compression=lossy, async_updates=False)
    assert Settings(compression="lossless", async_updates=False).compression == "lossless"


def test_compression():
    assert Settings().compression == "none"
    assert Settings(compression="lossless", compression_threshold=0.1).compression == "lossless"
    for wrong in (3, "zip", {"name": "zip"}, {"name": "top_k", "bits": 8}, {"name": []}, (0.1,), ""):
        with pytest.raises(
            SettingsError, match="compression must be one of 'none', 'threshold', 'delta'.*TopK\\("
        ):
            Settings(compression=wrong)
    with pytest.raises(SettingsError, match="Write TopK\\(\\) for"):
        Settings(compression=TopK)
    for given, kept in {
        TopK(): "top_k",
        TopK(0.25): {"name": "top_k", "share": 0.25},
        TopK(1): {"name": "top_k", "share": 1.0},
        Quantized(np.int64(16)): {"name": "quantized", "bits": 16},
    }.items():
        settings = Settings(compression=given)
        assert settings.compression == kept == Settings(compression=kept).compression
        assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert Carry.of("top_k") == Carry(share=0.1) and Carry.of({"name": "quantized", "bits": 16}).bits == 16
    assert Carry.of("delta", 0.5) == Carry(0.5) and not Carry.of("lossless").is_some
    for share in (0.0, 1.5, math.nan, "all", 10**400):
        with pytest.raises(SettingsError, match="TopK: share must be a number above 0"):
            Settings(compression=TopK(share))
    for bits in (4, 8.0, True, "8"):
        with pytest.raises(SettingsError, match="Quantized: bits must be 8 or 16"):
            Settings(compression=Quantized(bits))
    with pytest.raises(SettingsError, match='compression="top_k" says itself.*=0.5'):
        Settings(compression="top_k", compression_threshold=0.5)
    with pytest.raises(SettingsError, match=r"threshold, and that is 0.*Write compression_threshold=0\.01"):
        Settings(compression="threshold")
    waiting = Settings(compression_threshold=0.5)
    assert Settings(compression=None) == Settings() != waiting
    for words in (None, "none", "threshold"):
        assert Settings(compression=words, compression_threshold=0.5) == waiting


def test_an_engine_is_given_to_train_and_not_kept_as_a_setting():
    for placement in ("auto", "replicated", "sharded"):
        settings = Settings(placement=placement)
        assert Settings.from_dict(settings.to_dict()) == settings
    # What was kept before there was that setting, such as the plan of a study, is the same still.
    assert "placement" not in Settings().to_dict() and settings.to_dict()["placement"] == "sharded"
    with pytest.raises(SettingsError, match="one of 'auto', 'replicated', 'sharded', got 'shared'"):
        Settings(placement="shared")
    engine = SimpleNamespace(name="own", suits=lambda *_: True, train=lambda *_: None)
    with pytest.raises(
        SettingsError, match="An engine of your own is given to train.*write placement= there"
    ):
        Settings(placement=engine)


def test_compression_names_the_package_that_it_lacks(monkeypatch):
    monkeypatch.setattr("dist_classicrl.settings.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install zstandard"):
        Settings(compression="lossless").check_packages(ranks=2)
    Settings(compression="lossless").check_packages(ranks=1)  # who is alone sends nothing
    Settings().check_packages(ranks=2)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("batch_size", r"other = DistAsyncQLearning\(batch_size=3\), then other.q_table = agent.q_table"),
        ("gamma", r"DistAsyncQLearning\(discount_factor=3\)"),
        ("epsilon", "agent.epsilon = 3"),
        ("batch_sise", "Did you mean 'batch_size'"),
    ],
)
def test_settings_are_frozen_and_say_how_to_go_on_with_others(name, says):
    settings = Settings()
    with pytest.raises(UnknownAttributeError, match=f"^{name} cannot be set: Settings stay.*{says}"):
        setattr(settings, name, 3)
    assert settings == Settings() == pickle.loads(pickle.dumps(settings)) == copy.copy(settings)


def test_settings_survive_json():
    for settings in (
        Settings(),
        Settings(
            learning_rate=PerVisit(0.7), epsilon=Linear(1.0, 0.1, 100), seed=3, sync_frequency=5, dtype="f4"
        ),
        Settings(
            async_updates=False,
            logical_workers=3,
            state_size=5,
            action_size=np.int64(2),
            use_action_mask=False,
        ),
    ):
        assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    with pytest.raises(
        SettingsError, match="unknown settings gamma, which is called discount_factor here; kn"
    ):
        Settings.from_dict({"gamma": 0.9})
    with pytest.raises(SettingsError, match="unknown settings colour, speed; known are action_size"):
        Settings.from_dict({"speed": 1, "colour": 2})
    with pytest.raises(SettingsError, match="batch_size"):
        Settings.from_dict({"batch_size": 0})


def test_the_agents_arguments_are_the_settings():
    parameters = inspect.signature(DistAsyncQLearning).parameters
    # Scripts give these by their place.
    assert [name for name, given in parameters.items() if given.kind is not given.KEYWORD_ONLY] == [
        "state_size",
        "action_size",
        "learning_rate",
        "discount_factor",
        "epsilon",
        "batch_size",
        "sync_frequency",
        "compression_threshold",
        "async_updates",
        "buffer_size",
        "prefetch_factor",
        "communication_backend",
        "algorithm",
        "dtype",
        "seed",
        "comm",
    ]
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert {name: parameter.default for name, parameter in parameters.items() if name != "comm"} == fields
    assert DistAsyncQLearning(batch_size=7, seed=4).settings == Settings(batch_size=7, seed=4)
    assert DistAsyncQLearning(3, 2, 0.5).settings == Settings(state_size=3, action_size=2, learning_rate=0.5)


def test_the_arguments_of_train_about_checkpoints_are_those_of_the_plan():
    parameters = inspect.signature(DistAsyncQLearning.train).parameters
    for field in dataclasses.fields(CheckpointPlan):
        assert parameters[field.name].default == field.default, field.name


@pytest.mark.parametrize("kind", [Settings, CheckpointPlan])
def test_every_default_is_allowed(kind):
    made = kind()
    for field in dataclasses.fields(kind):
        default = field.default.usual if isinstance(field.default, ByRule) else field.default
        assert field.metadata["check"](field.name, default) == getattr(made, field.name)
