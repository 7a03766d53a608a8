"""Tests of `trident crashtest`."""
