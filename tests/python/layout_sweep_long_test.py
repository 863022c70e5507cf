"""A thousand random layouts, with another seed than the sixty of every run (layout_sweep.py)."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import layout_sweep


def test_a_thousand_random_layouts_train_what_the_reference_trains(tmp_path):
    wrong, _ = layout_sweep.sweep("long", range(1000), tmp_path)
    assert not wrong, "\n\n".join(wrong)
