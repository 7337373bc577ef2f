"""Tests of the files under deploy/."""
