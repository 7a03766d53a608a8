"""Tests of the proof that a spout keeps its promises."""
