"""A thousand random layouts, with another seed than the sixty of every run (layout_sweep.py)."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import layout_sweep


def test_a_thousand_random_layouts_train_what_the_reference_trains(tmp_path):
    work = layout_sweep.sweep("long", range(1000), tmp_path)
    assert not work.wrong, "\n\n".join(work.wrong)
    assert not layout_sweep.missed(work), "\n".join(layout_sweep.missed(work))
