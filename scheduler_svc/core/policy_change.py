"""A configuration with some of its changeable knobs turned; all of the changes hold, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from scheduler_svc.core.config import CHANGEABLE, SchedulerConfig

MAX_WORKLOADS = 256
"""Workload classes with a chunk size of their own."""


def changed(config: SchedulerConfig, changes: Mapping[str, object]) -> SchedulerConfig:
    """The configuration after the changes.  Given `chunk_sizes` join those there are; 0 removes.

    Raises:
        ValueError: names the field and what is wrong; nothing has changed then.
    """
    for name in changes:
        if name not in CHANGEABLE:
            raise ValueError(f"{name}: cannot be changed while requests run")
    values = dict(changes)
    given = values.get("chunk_sizes")
    if given is not None:
        assert isinstance(given, Mapping)
        sizes = {name: size for name, size in {**config.chunk_sizes, **given}.items() if size}
        if len(sizes) > MAX_WORKLOADS:
            raise ValueError(f"chunk_sizes: {len(sizes)} classes; at most {MAX_WORKLOADS}")
        values["chunk_sizes"] = MappingProxyType(sizes)
    # The fields' types are those of the schema that the changes came in by.
    return replace(config, **values)  # type: ignore[arg-type]
