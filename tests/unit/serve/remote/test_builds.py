"""Builds: replicas of one version that would sound different are named, once per change."""

import logging

import pytest

from serve.remote.replicas import Builds


def replicas(*fingerprints: str) -> list[dict[str, str]]:
    return [{"fingerprint": one} for one in fingerprints]


def test_replicas_that_differ_are_named_and_counted_and_logged_once_per_change(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    builds = Builds()
    builds.told("AcousticModel", replicas("native", "native"))
    assert (builds.differing, builds.count(["AcousticModel"]), caplog.records) == ({}, 1, [])
    for _ in range(3):
        builds.told("AcousticModel", replicas("torch", "native", "native"))
    assert builds.differing == {"AcousticModel": {"native": 2, "torch": 1}}
    assert (builds.count(["TextNormalizer", "AcousticModel"]), builds.count(["TextNormalizer"])) == (2, 1)
    builds.told("AcousticModel", replicas("torch", "native"))
    (line,) = caplog.records
    assert (line.levelname, "replicas of AcousticModel differ" in line.message) == ("WARNING", True)
    assert "{'native': 2, 'torch': 1}" in line.message
    builds.told("AcousticModel", [])
    assert builds.differing, "no answer says nothing"
    builds.told("AcousticModel", replicas("torch"))
    assert builds.differing == {}
    assert "replicas of AcousticModel are alike again" in caplog.text
    builds.told("AcousticModel", replicas("torch", "native"))
    assert len(caplog.records) == 3


def test_a_replica_of_the_release_before_which_tells_no_fingerprint_does_not_count():
    builds = Builds()
    builds.told("Vocoder", [{}, {"fingerprint": "native"}])
    assert (builds.differing, builds.count(["Vocoder"])) == ({}, 1)
