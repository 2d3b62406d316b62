"""Settings: from a TOML file to frozen values, or to a list of faults that each name their key.

`load` is the way in. Nothing outside this room knows marshmallow, and nothing outside it reads the
file; docs/configuration.md is the reference for every key.
"""

from tornado_frontdoor.config.address import Address
from tornado_frontdoor.config.faults import ConfigError, ConfigFault
from tornado_frontdoor.config.loading import load, load_apart
from tornado_frontdoor.config.settings import (
    AdmissionSettings,
    ClusterSettings,
    GpuPoolSettings,
    GpuSettings,
    HostSettings,
    ModelSettings,
    ProcessSettings,
    RouteSettings,
    ServerSettings,
    Settings,
    SleepSettings,
    SurfaceSettings,
    UpstreamSettings,
)

__all__ = [
    "Address",
    "AdmissionSettings",
    "ClusterSettings",
    "ConfigError",
    "ConfigFault",
    "GpuPoolSettings",
    "GpuSettings",
    "HostSettings",
    "ModelSettings",
    "ProcessSettings",
    "RouteSettings",
    "ServerSettings",
    "Settings",
    "SleepSettings",
    "SurfaceSettings",
    "UpstreamSettings",
    "load",
    "load_apart",
]
