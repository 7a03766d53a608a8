"""Tests of the Kafka spouts, all against a real broker."""
