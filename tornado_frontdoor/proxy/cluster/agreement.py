"""What the front doors of one cluster must agree upon: the limits of the gates they share."""

import json
from dataclasses import asdict
from hashlib import sha256

from tornado_frontdoor.config import Settings


def fingerprint(settings: Settings) -> str:
    """Return a short name of all that front doors of one cluster must agree upon."""
    agreed = {
        upstream.url: [
            asdict(upstream.admission) if upstream.admission else None,
            asdict(upstream.sleep) if upstream.sleep else None,
            asdict(upstream.gpu) if upstream.gpu else None,
            upstream.cooling_limit_s,
            # As before there were devices where there are none: doors of both releases agree.
            {
                one.url: (one.slots, one.devices) if one.devices else one.slots
                for one in upstream.replicas
            },
            upstream.pick,
        ]
        for upstream in settings.upstreams.values()
    }
    assert settings.cluster is not None
    groups = {name: asdict(group) for name, group in settings.groups.items()}
    shared = [agreed, groups, settings.cluster.lease_s, settings.cluster.on_outage]
    return sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]
