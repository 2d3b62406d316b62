"""Who may change what is in a GPU's memory: one engine at a time on each, in order of asking.

Two transitions at once on one GPU crash it (vllm#36753). All gates share one `GpuLocks`; each asks
for all of its engine's devices at once, so nobody holds one and waits for another.
"""

from tornado_frontdoor.core.request import UpstreamKey


class GpuLocks:
    """First come, first served on each device. Never blocks: it grants now, or tells later."""

    def __init__(self) -> None:
        self._held: dict[UpstreamKey, tuple[int, ...]] = {}
        self._line: dict[UpstreamKey, tuple[int, ...]] = {}

    def ask(self, upstream: UpstreamKey, devices: tuple[int, ...]) -> bool:
        """Ask for devices, and tell whether they are granted; if not, `release` will name this one.

        An engine that names no devices shares none: it is granted at once.
        """
        assert upstream not in self._held, f"{upstream} holds its devices"
        self._line[upstream] = devices
        return upstream in self._grant()

    def release(self, upstream: UpstreamKey) -> tuple[UpstreamKey, ...]:
        """Give devices back, or ask no longer; return who is granted theirs by that."""
        self._held.pop(upstream, None)
        self._line.pop(upstream, None)
        return self._grant()

    def holds(self, upstream: UpstreamKey) -> bool:
        """Tell whether it holds its devices now."""
        return upstream in self._held

    def _grant(self) -> tuple[UpstreamKey, ...]:
        granted = []
        taken = {device for devices in self._held.values() for device in devices}
        for upstream, devices in [*self._line.items()]:
            if taken.isdisjoint(devices):
                self._held[upstream] = self._line.pop(upstream)
                granted.append(upstream)
            # Those in line take their place too: a later one must not pass them on a device.
            taken.update(devices)
        return tuple(granted)
