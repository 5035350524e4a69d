"""Tests of the answer."""
