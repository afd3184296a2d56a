"""Tests of foreign models."""
