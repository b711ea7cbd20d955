"""Who may be served without a key: this machine, and nobody else unless it is meant."""

import pytest

from protos.errors import InvalidRequest
from radixd.chassis.exposure import check_exposure, is_loopback
from radixd.chassis.setting_sources import load_settings
from radixd.chassis.tenants import NO_TENANTS, Tenants, TenantShares, key_digest

KEYED = Tenants(shares={"a": TenantShares()}, by_key_digest={key_digest("key"): "a"})
KEYLESS = Tenants(shares={"a": TenantShares()}, by_key_digest={})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_the_loopback(host):
    assert is_loopback(host)
    check_exposure(load_settings({"host": host, "http_host": host}), NO_TENANTS)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "192.0.2.1", ""])
def test_other_machines_need_a_key(host):
    assert not is_loopback(host)
    settings = load_settings({"host": host})
    for tenants in (NO_TENANTS, KEYLESS):
        with pytest.raises(InvalidRequest) as caught:
            check_exposure(settings, tenants)
        assert caught.value.field == "host"
        assert "--tenants FILE with keys, or --insecure" in caught.value.message
    check_exposure(settings, KEYED)
    check_exposure(load_settings({"host": host, "insecure": True}), NO_TENANTS)


def test_http_has_an_address_of_its_own():
    open_http = {"http_host": "0.0.0.0"}
    with pytest.raises(InvalidRequest) as caught:
        check_exposure(load_settings(open_http), NO_TENANTS)
    assert caught.value.field == "http_host"
    check_exposure(load_settings(open_http | {"http_port": -1}), NO_TENANTS)
