"""The table of features: each row writes programs that can be loaded, the same ones each time."""

from __future__ import annotations

import pytest
from tests.fuzz.features import AREAS, FEATURES, WHOLE, WRITERS, generate


def test_names_are_unique():
    assert len(FEATURES) == sum(len(area.ROWS) for area in AREAS)


@pytest.mark.parametrize("name", [*FEATURES, WHOLE, *WRITERS])
def test_programs_of_a_feature(name):
    for seed in range(8):
        text = generate(seed, name)
        compile(text, "<program>", "exec")
        assert text == generate(seed, name)
