"""Who may change what is in a GPU's memory: one engine at a time on each, in order of asking.

Two transitions at once on one GPU crash it (vllm#36753). All gates share one `GpuLocks`; each asks
for all of its engine's devices at once, so nobody holds one and waits for another. An owner is an
engine by its address: names come and go with the configuration.
"""


class GpuLocks:
    """First come, first served on each device. Never blocks: it grants now, or tells later."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, ...]] = {}
        self._line: dict[str, tuple[int, ...]] = {}

    def ask(self, owner: str, devices: tuple[int, ...]) -> bool:
        """Ask for devices, and tell whether they are granted; if not, `release` will name this one.

        An engine that names no devices shares none: it is granted at once.
        """
        assert owner not in self._held, f"{owner} holds its devices"
        self._line[owner] = devices
        return owner in self._grant()

    def release(self, owner: str) -> tuple[str, ...]:
        """Give devices back, or ask no longer; return who is granted theirs by that."""
        self._held.pop(owner, None)
        self._line.pop(owner, None)
        return self._grant()

    def holds(self, owner: str) -> bool:
        """Tell whether it holds its devices now."""
        return owner in self._held

    def _grant(self) -> tuple[str, ...]:
        granted = []
        taken = {device for devices in self._held.values() for device in devices}
        for owner, devices in [*self._line.items()]:
            if taken.isdisjoint(devices):
                self._held[owner] = self._line.pop(owner)
                granted.append(owner)
            # Those in line take their place too: a later one must not pass them on a device.
            taken.update(devices)
        return tuple(granted)
