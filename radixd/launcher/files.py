"""Looks at the files the settings name before anything starts; the services read them for use."""

from radixd.chassis.preheat_file import load_preheat_file
from radixd.chassis.settings import Settings
from radixd.chassis.tenants import load_tenants


def check_files(settings: Settings) -> None:
    """Nothing when the files of tenants and of prefixes can be used.

    Raises:
        InvalidRequest: one cannot; names the option, the file, and what in it is wrong.
    """
    tenants = load_tenants(settings.tenants)
    load_preheat_file(
        settings.preheat, max_prompt_bytes=settings.max_prompt_bytes, tenants=tenants.shares
    )
