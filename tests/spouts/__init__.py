"""Tests of the spouts."""
