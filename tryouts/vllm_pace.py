"""A pace for a real vLLM: each iteration takes as long as it would on a machine that is stated.

For vLLM itself: start it with the tree on PYTHONPATH and `--worker-extension-cls
tryouts.vllm_pace.Pace`, then POST /collective_rpc {"method": "keep_pace", "kwargs": {...}} (it
needs VLLM_SERVER_DEV_MODE=1). Scheduler, memory and HTTP are vLLM's own; only the model's
arithmetic is replaced by time, which a busy machine without a GPU withholds from nobody.
"""

import time
from typing import Any


class Pace:
    """What vLLM mixes into its worker."""

    model_runner: Any

    def keep_pace(self, alone_s: str, further_s: str = "0", reading_s: str = "0") -> str:
        """Let an iteration take `alone_s`, and more a further sequence and a prompt's token."""
        costs = float(alone_s), float(further_s), float(reading_s)
        runner = self.model_runner
        whole = getattr(runner, "before_pace", None) or runner.execute_model
        runner.before_pace = whole

        def execute_model(scheduler_output: Any, *more: Any, **others: Any) -> Any:
            began_s = time.monotonic()
            made = whole(scheduler_output, *more, **others)
            tokens = scheduler_output.num_scheduled_tokens.values()
            if tokens:
                read = sum(count for count in tokens if count > 1)
                due_s = costs[0] + costs[1] * (len(tokens) - 1) + costs[2] * read
                time.sleep(max(0.0, began_s + due_s - time.monotonic()))
            return made

        runner.execute_model = execute_model
        return f"an iteration takes {costs}"
