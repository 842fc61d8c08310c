from __future__ import annotations

import pickle

from steppe.errors import ConfigError, nearest, unknown_name


def test_an_error_says_what_where_and_how():
    error = ConfigError("it is wrong", where="file.toml", mend="put it right")
    assert str(error) == "it is wrong\n  where: file.toml\n  mend:  put it right"
    assert str(ConfigError("alone")) == "alone"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (ConfigError, str(error))


def test_nearest_names():
    assert nearest("resnet", ["ResNet", "vit"]) == ["ResNet"]
    assert "choose one of: a, b" in str(unknown_name("thing", "zzz", ["b", "a"]))
    assert "choose one of: a, 'a, twice'" in str(unknown_name("variant", "zzz", ["a", "a, twice"]))
    told = str(unknown_name("thing", "zzz", ["b", "a"], see="steppe data"))
    assert told.endswith("choose one of: a, b. `steppe data` lists them all.")
    assert str(unknown_name("thing", "aa", ["a"], see="steppe data")).endswith("'a'? `steppe data` lists them all.")
    assert "`steppe models` lists" in str(unknown_name("model", "zzz", map(str, range(50)), see="steppe models"))
