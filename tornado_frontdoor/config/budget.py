"""Whether engines fit into their GPUs, and weights into the host, by the file's own numbers.

For each GPU: the slices of the engines on it, and one CUDA context for each of them, against
`gpu.limit`; what the limit leaves is for the transients of a boot or a wake. vLLM's utilization is
a share of the whole GPU and each process accounts for itself alone, so shares add up. For the host:
the weights of all engines that sleep at level 1, as if all of them slept at once.
"""

import math
from dataclasses import dataclass
from typing import Literal

from tornado_frontdoor.config.settings import Settings, UpstreamSettings

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLine:
    """One sum against one limit. Shares are of a GPU's whole memory."""

    subject: str
    """`GPU 0` or `host RAM`."""
    used: float
    limit: float | None
    """None: the file does not give it, so nothing is known to fit or not."""
    unit: Literal["share", "GiB"]
    upstreams: tuple[str, ...]
    """Those that share it, in the file's order."""
    turns: bool = False
    """Whether some of them can sleep, so that those which do not fit together take turns."""
    unknown: tuple[str, ...] = ()
    """Those that belong into the sum and whose part the file does not give."""

    @property
    def fits(self) -> bool | None:
        """Whether the sum is within the limit; None where the file does not give the limit."""
        return None if self.limit is None else self.used <= self.limit + _ROUNDING

    def __str__(self) -> str:
        of = "" if self.unit == "GiB" else " of its memory"
        text = f"{self.subject}: {self._shown(self.used)}{of} for "
        text += ", ".join(self.upstreams) or "nobody"
        if self.unknown:
            text += f", not counting {', '.join(self.unknown)}"
        if self.limit is None:
            return f"{text}; what there is, host.ram_gib would say"
        text += f"; the limit is {self._shown(self.limit)}"
        over = f", {self._shown(self.used - self.limit)} too much"
        if self.turns:
            over += " at once: they take turns"
        return text if self.fits else text + over

    def _shown(self, amount: float) -> str:
        return f"{amount:.1f} GiB" if self.unit == "GiB" else f"{amount:.1%}"


def gpu_budget(settings: Settings) -> list[BudgetLine]:
    """Add up each GPU in the order of its number, then the host's memory."""
    return [*_gpus(settings), *_host(settings)]


def _gpus(settings: Settings) -> list[BudgetLine]:
    pool = settings.gpu
    if pool is None:
        return []
    engines: dict[int, list[tuple[str, UpstreamSettings, float | None]]] = {}
    for upstream in settings.upstreams.values():
        for url in upstream.urls:
            gpu = upstream.gpu_of(url)
            for device in gpu.devices if gpu else ():
                known = upstream.name_of(url), upstream, gpu.share if gpu else None
                engines.setdefault(device, []).append(known)
    context = pool.context_gib / pool.memory_gib
    return [
        BudgetLine(
            subject=f"GPU {device}",
            used=math.fsum(share + context for _, _, share in engines[device] if share is not None),
            limit=pool.limit,
            unit="share",
            upstreams=tuple(name for name, _, share in engines[device] if share is not None),
            unknown=tuple(name for name, _, share in engines[device] if share is None),
            turns=any(one.sleep and not one.sleep.pinned for _, one, _ in engines[device]),
        )
        for device in sorted(engines)
    ]


def _host(settings: Settings) -> list[BudgetLine]:
    sleepers = [one for one in settings.upstreams.values() if one.sleep and one.sleep.idle_sleep_s]
    weights = {
        one.name_of(url): one.gpu.weights_gib if one.gpu else None
        for one in sleepers
        for url in one.urls
    }
    known = {key: gib for key, gib in weights.items() if gib is not None}
    if not known:
        return []
    return [
        BudgetLine(
            subject="host RAM",
            used=math.fsum(known.values()),
            limit=settings.host.ram_gib if settings.host else None,
            unit="GiB",
            upstreams=tuple(known),
            unknown=tuple(key for key in weights if key not in known),
        )
    ]
