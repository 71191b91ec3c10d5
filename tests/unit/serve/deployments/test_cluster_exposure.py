"""Who starts Ray open to everybody is told so."""

import pytest

from serve.app import exposure, exposure_of_this_cluster


@pytest.mark.parametrize(
    ("address", "requires_token", "is_exposed"),
    [
        ("192.0.2.2", False, True),
        ("2001:db8::1", False, True),
        ("192.0.2.2", True, False),
        ("127.0.0.1", False, False),
        ("::1", False, False),
    ],
)
def test_the_risk_is_named_where_there_is_one(address: str, requires_token: bool, is_exposed: bool):
    said = exposure(address, requires_token=requires_token)
    assert (said is not None) == is_exposed
    if said is not None:
        assert f"any client that reaches {address} can run any code" in said
        assert "RAY_AUTH_MODE=token" in said


def test_without_a_cluster_there_is_nothing_to_say():
    assert exposure_of_this_cluster() is None
