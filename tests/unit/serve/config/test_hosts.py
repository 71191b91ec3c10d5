"""Hosts that clients may have asked, and folders that a service writes to: known before it starts, refused in a sentence."""

import os
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from serve.app import build_app
from serve.config import folders
from serve.config.app_config import AppConfig, read_app_config
from serve.config.hosts import host_and_port, is_listed, is_near

NEAR = [
    *("localhost", "localhost.", "LOCALHOST", "a.localhost", "ip6-localhost", "127.0.0.1", "127.9.9.9", "127.1", "2130706433"),
    *("0x7f000001", "0177.0.0.1", "::1", "::ffff:127.0.0.1", "2002:7f00:1::", "0.0.0.0", "0", "::", "0.1.2.3"),
    *("169.254.169.254", "0xa9fea9fe", "fe80::1", "fe80::1%eth0", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1"),
    *("100.100.100.200", "fd00:ec2::254", "168.63.129.16", "metadata.google.internal", "metadata.google.internal."),
    *("fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "64:ff9b::169.254.169.254", "::127.0.0.1"),
]
FAR = ["hooks.example.com", "10.1.2.3", "192.168.1.5", "8.8.8.8", "2001:4860:4860::8888", "fd12::1", "localhost.example.com"]


@pytest.mark.parametrize("host", NEAR)
def test_what_leads_to_this_machine_or_its_secrets_is_near(host: str):
    assert is_near(host)


@pytest.mark.parametrize("host", FAR)
def test_other_hosts_are_not(host: str):
    assert not is_near(host)


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "169.254.169.254", "100.100.100.200", "a.localhost"])
@pytest.mark.parametrize("port", ["", ":9000"])
def test_a_near_host_is_said_twice_or_refused(host: str, port: str):
    with pytest.raises(ConfigError, match="say it in webhook_near_hosts too"):
        read_app_config({"jobs": {"webhook_hosts": [host + port]}})
    with pytest.raises(ConfigError, match="near_hosts"):
        read_app_config({"jobs": {"webhook_hosts": [f"{host}:9000"], "webhook_near_hosts": [host]}})
    with pytest.raises(ConfigError, match="near_hosts"):
        read_app_config({"jobs": {"webhook_near_hosts": [host + port]}})
    jobs = read_app_config({"jobs": {"webhook_hosts": [host + port], "webhook_near_hosts": [host + port]}}).jobs
    assert is_listed(host, 9000 if port else 443, "https", jobs.webhook_hosts)
    assert not is_listed(host, 9001, "https", jobs.webhook_hosts)


@pytest.mark.parametrize("wrong", ["a.b:0", "a.b:65536", "a.b:", "a.b:x", "http://a.b", "a.b/c", "A.b", "u@a.b", "", "a.b:1:2"])
def test_what_is_no_host_with_a_port_is_refused(wrong: str):
    with pytest.raises(ConfigError, match=r"args\.jobs"):
        read_app_config({"jobs": {"webhook_hosts": [wrong]}})


def test_a_host_without_a_port_has_that_of_the_scheme():
    assert (host_and_port("a.b"), host_and_port("a.b:8443")) == (("a.b", None), ("a.b", 8443))
    assert is_listed("a.b", 80, "http", ["a.b"])
    assert not is_listed("a.b", 8080, "http", ["a.b"])


def config(**args: object) -> AppConfig:
    return AppConfig.model_validate(args)


def test_every_folder_is_known(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CHATTTS_HOME", str(tmp_path))
    assert folders.written_folders(config()) == {
        "jobs.folder": tmp_path / "jobs",
        "voices.store": tmp_path,
        "keys.store": tmp_path,
    }
    everywhere = config(
        jobs={"folder": "/srv/jobs"},
        voices={"store": "redis://store:6379/0"},
        keys={"store": "/srv/keys/keys.sqlite"},
        tracing={"exporter": "file", "folder": "/srv/traces"},
    )
    assert folders.written_folders(everywhere) == {
        "jobs.folder": Path("/srv/jobs"),
        "keys.store": Path("/srv/keys"),
        "tracing.folder": Path("/srv/traces"),
    }
    assert folders.written_folders(config(jobs={"max_jobs": 0}, voices={"store": "redis://store:6379/0"})) == {}


def read_only(tmp_path: Path) -> Path:
    """A place where nobody can create a folder, root neither."""
    (tmp_path / "a file").touch()
    return tmp_path / "a file"


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({"jobs": {"folder": "PLACE/jobs"}}, "jobs.folder"),
        ({"voices": {"store": "PLACE/store.sqlite"}}, "voices.store"),
        ({"keys": {"store": "PLACE/keys.sqlite"}}, "keys.store"),
        ({"tracing": {"exporter": "file", "folder": "PLACE/traces"}}, "tracing.folder"),
    ],
)
def test_nothing_is_deployed_that_could_not_keep_what_it_accepts(args, key, tmp_path: Path):
    place = str(read_only(tmp_path))
    spoilt = {
        part: {name: str(value).replace("PLACE", place) for name, value in values.items()} for part, values in args.items()
    }
    with pytest.raises(ConfigError, match=rf"^{key}: .* cannot be written here: mount it writable, or name another folder"):
        build_app(spoilt)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_rights_count(tmp_path: Path):
    tmp_path.chmod(0o500)
    assert not folders.can_be_written(tmp_path / "jobs")
    tmp_path.chmod(0o700)
    assert folders.can_be_written(tmp_path / "jobs" / "deep")
