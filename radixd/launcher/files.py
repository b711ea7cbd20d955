"""Looks at the files the settings name before anything starts; the services read them for use."""

from radixd.chassis.exposure import check_exposure
from radixd.chassis.preheat_file import load_preheat_file
from radixd.chassis.settings import Settings
from radixd.chassis.tenants import load_tenants
from radixd.chassis.tls import ServerTls, tls_files


def check_files(settings: Settings) -> None:
    """Nothing when the files of tenants, prefixes and certificates can be used, and strangers are
    kept out or welcome.

    Raises:
        InvalidRequest: one cannot; names the option, the file, and what in it is wrong.
    """
    tenants = load_tenants(settings.tenants)
    check_exposure(settings, tenants)
    if (files := tls_files(settings)) is not None:
        ServerTls(files)
    load_preheat_file(
        settings.preheat, max_prompt_bytes=settings.max_prompt_bytes, tenants=tenants.shares
    )
