"""Synthetic targets whose shallow copy agrees at a stated rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.decoder.agreement import agreement, agreement_of, scale_for
from kvbench.decoder.model import open_model
from kvbench.decoder.synthetic import AGREEMENT, digest, parse
from kvbench.errors import SettingError

TINY = "synthetic:tiny,layers=4,shallow=2"


@pytest.mark.parametrize("percent", [30, 60, 90])
def test_the_shallow_copy_agrees_at_the_stated_rate(percent: int) -> None:
    found = agreement(open_model(f"{TINY},agree={percent}"), 2, 1000)
    assert abs(found - percent / 100) <= 0.05


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "percent"), [(s, p) for s, rates in AGREEMENT.items() for p in rates]
)
def test_every_entry_of_the_table(shape: tuple[str, int, int], percent: int) -> None:
    preset, layers, shallow = shape
    ref = f"synthetic:{preset},layers={layers},shallow={shallow},agree={percent}"
    assert abs(agreement(open_model(ref), shallow, 1000) - percent / 100) <= 0.05


@pytest.mark.long
def test_other_shapes_find_their_scale() -> None:
    ref = "synthetic:tiny,layers=3,seed=5"
    later = scale_for(ref, 1, 70, 2048)
    found = agreement(open_model(f"{ref},shallow=1,later={later}"), 1, 1000)
    assert abs(found - 0.7) <= 0.05


def test_a_model_agrees_with_itself() -> None:
    model = open_model("synthetic:tiny")
    assert agreement_of(model, model, 64) == 1.0


def test_models_without_a_draft_are_digested_as_if_there_were_none() -> None:
    config, seed = parse("synthetic:tiny")
    assert digest(replace(config, later_scale=0.5), seed) == digest(config, seed)
    drawn = digest(*parse("synthetic:tiny,shallow=1,later=999"))
    assert drawn != digest(config, seed)
    assert drawn != digest(*parse("synthetic:tiny,shallow=1,later=998"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("shallow=1", "goes with one of later=T, agree=P"),
        ("later=100", "shallow=K goes with"),
        ("shallow=1,later=5,agree=50", "one of later"),
        ("layers=4,shallow=2,agree=55", "known for seed 0 and tiny,layers=4,shallow=2: 30, 40"),
        ("layers=4,shallow=2,agree=50,seed=7", "later=T does for any model"),
        ("layers=4,shallow=2,agree=50,d_model=128", "later=T does for any model"),
        ("shallow=2,later=100", "shallow = 2: fewer than its 2 layers"),
    ],
)
def test_an_impossible_target_is_refused_in_one_line(keys: str, words: str) -> None:
    with pytest.raises(Exception, match=words) as refused:
        open_model(f"synthetic:tiny,{keys}")
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, SettingError) or "model" in str(refused.value)
