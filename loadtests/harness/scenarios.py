"""The scenarios as data: which engines stand behind the door, and how much load is usual.

The usual sizes are for a run by hand; `--users` and `--seconds` make them smaller.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StandInEngine:
    """One engine stand-in and its upstream; `cap` None: neither capped nor queued."""

    model: str
    slots: int = 256
    cap: int | None = None
    queue: int = 0
    queue_timeout_s: float = 30.0
    sleeps: bool = False

    @property
    def faults(self) -> str:
        """What its stand-in is told at the beginning of a run."""
        # Long enough for the whole crowd to come while the engine is still waking.
        return "wake_up=slow:0.5" if self.sleeps else ""

    def stand_in(self) -> list[str]:
        """Return the options of `frontdoor stand-in`."""
        options = ["--port", "0", "--model", self.model, "--slots", str(self.slots)]
        if self.sleeps:
            options.append("--sleep-mode")
        return options

    def upstream(self, url: str) -> str:
        """Return its tables of the configuration."""
        text = f'[upstreams.{self.model}]\nurl = "{url}"\n'
        if self.cap is not None:
            text += (
                f"[upstreams.{self.model}.admission]\nslots = {self.slots}\ncap = {self.cap}\n"
                f"queue = {self.queue}\nqueue_timeout_s = {self.queue_timeout_s}\n"
            )
        if self.sleeps:
            text += f"[upstreams.{self.model}.sleep]\nmax_waiting = 1000\n"
            if self.model == "embed":
                text += 'canary_path = "/v1/embeddings"\n'
        return text + f'[models.{self.model}]\nupstream = "{self.model}"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadScenario:
    """What a scenario needs, and what it usually is."""

    locustfile: str
    engines: tuple[StandInEngine, ...]
    users: int
    seconds: float = 0.0
    hold: str = "exp:2"
    rate: float = 0.0
    leaves: bool = False
    """Whether clients hang up."""
    restarts: int = 0
    """How often another process takes the front door's place meanwhile."""
    levels: tuple[int, ...] = (0,)
    """One run for each; above 0 the engines begin it asleep, that deep."""
    routes: dict[str, str] = field(default_factory=dict)

    def configuration(self, urls: dict[str, str]) -> str:
        """Return the front door's configuration for engines at these addresses."""
        tables = "".join(engine.upstream(urls[engine.model]) for engine in self.engines)
        routes = "".join(f'{key} = "{model}"\n' for key, model in self.routes.items())
        return f'[server]\nstate_dir = "var"\n[surfaces]\n{tables}[routes]\n{routes}'


REASONING = StandInEngine("reasoning", slots=8, cap=6, queue=8)
EMBEDDINGS = {"embeddings": "embed"}

SCENARIOS = {
    "verify": LoadScenario(locustfile="verify.py", engines=(REASONING,), users=40, hold="2"),
    "mixed": LoadScenario(
        locustfile="mixed.py",
        engines=(REASONING, StandInEngine("text"), StandInEngine("embed")),
        users=4,
        seconds=300,
        rate=2.4,  # 0.8 of what six slots serve in 2 s each
        routes=EMBEDDINGS,
    ),
    "streaming": LoadScenario(
        locustfile="streaming.py", engines=(StandInEngine("text"),), users=20, seconds=60
    ),
    "wake-storm": LoadScenario(
        locustfile="wake_storm.py",
        engines=(
            StandInEngine("text", sleeps=True),
            StandInEngine("ocr", sleeps=True),
            StandInEngine("embed", sleeps=True),
        ),
        users=60,
        levels=(1, 2),
        routes=EMBEDDINGS,
    ),
    "disconnects": LoadScenario(
        locustfile="disconnects.py",
        engines=(REASONING,),
        users=20,
        seconds=60,
        hold="exp:0.3",
        leaves=True,
    ),
    "restart": LoadScenario(
        locustfile="streaming.py",
        engines=(StandInEngine("text", slots=8, cap=6, queue=64),),
        users=20,
        seconds=20,
        restarts=3,
    ),
    "soak": LoadScenario(
        locustfile="soak.py",
        engines=(REASONING, StandInEngine("text"), StandInEngine("embed")),
        users=9,
        seconds=1800,
        hold="exp:0.5",
        rate=4,
        leaves=True,
        routes=EMBEDDINGS,
    ),
}
