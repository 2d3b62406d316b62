"""Waking from the command line, and signals to a front door process that wakes."""

import asyncio
import json
import signal
from pathlib import Path
from subprocess import CompletedProcess

from killable import Scene, killable
from naps import CHAT, WORDS, chat_with, configuration, text_of
from on_stage import run

MESSAGES = "/llm/v1/messages"


async def command(scene: Scene, *arguments: str) -> CompletedProcess[str]:
    """Run `frontdoor` against the scene's front door, and let the engine go on meanwhile."""
    admin = f"http://127.0.0.1:{scene.door.admin_port}"
    return await asyncio.to_thread(run, *arguments, "--admin", admin)


def test_status_wake_and_sleep_from_the_command_line(tmp_path: Path) -> None:
    """A table for people, JSON for scripts; 0 when it is done, 1 with one line when it is not."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await scene.door.settled("awake")
            shown = await command(scene, "status")
            assert (shown.returncode, shown.stderr) == (0, "")
            assert "text" in shown.stdout
            assert "awake" in shown.stdout
            told = await command(scene, "status", "--json")
            assert json.loads(told.stdout)["upstreams"]["text"]["state"] == "awake"

            asleep = await command(scene, "sleep", "text", "--level", "2")
            assert (asleep.returncode, asleep.stdout) == (0, "text: offloaded\n")
            assert scene.engine._engine.memory.depth == 2
            woken = await command(scene, "wake", "text-any", "--wait")
            assert (woken.returncode, woken.stdout) == (0, "text: awake\n")
            asleep = await command(scene, "sleep", "text")
            assert asleep.stdout == "text: sleeping\n"
            begun = await command(scene, "wake", "text")
            assert begun.returncode == 0
            assert begun.stdout in ("text: sleeping\n", "text: waking\n")
            await scene.door.settled("awake")

            wire = await scene.door.begin(CHAT, chat_with(hold_s=600))
            await scene.until(lambda: scene.engine._counters.in_flight)
            busy = await command(scene, "sleep", "text")
            assert (busy.returncode, busy.stdout) == (1, "")
            assert busy.stderr == "frontdoor: text: busy: 1 is inside\n"
            wire.leave()

            missing = await command(scene, "wake", "nobody")
            assert (missing.returncode, missing.stdout) == (1, "")
            assert missing.stderr.count("\n") == 1
            assert "nobody" in missing.stderr

    asyncio.run(scenario())


def test_commands_say_what_is_wrong_in_one_line() -> None:
    """1: nobody answers there; 2: wrong usage."""
    for arguments in (("status",), ("wake", "text"), ("sleep", "text")):
        gone = run(*arguments, "--admin", "http://127.0.0.1:9")
        assert (gone.returncode, gone.stdout) == (1, "")
        assert gone.stderr.startswith("frontdoor: no front door answers at http://127.0.0.1:9")
        assert gone.stderr.count("\n") == 1
    assert run("sleep", "text", "--level", "4").returncode == 2
    assert run("wake").returncode == 2


def test_a_journal_that_cannot_be_kept_is_said_in_one_line(tmp_path: Path) -> None:
    """Exit code 1 before any listener opens: without it a kill could leave garbage to be served."""
    (tmp_path / "state").write_text("a file, where a folder is needed")
    path = tmp_path / "frontdoor.toml"
    path.write_text(configuration({"text": "http://127.0.0.1:9"}, {}))
    ended = run("serve", "--config", str(path))
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("frontdoor: ")]
    assert str(tmp_path / "state") in line
    assert "Traceback" not in ended.stderr


def test_a_hangup_with_other_idle_limits_wakes_and_sleeps_nothing(tmp_path: Path) -> None:
    """S14, by the signal itself."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await scene.door.settled("awake")
            quiet = len(scene.engine._counters.control_calls)
            path = scene.door.path
            path.write_text(path.read_text().replace("idle_sleep_s = 0", "idle_sleep_s = 100"))
            scene.door.signal(signal.SIGHUP)
            await scene.until(lambda: "read again" in scene.door.log())
            calls = list(scene.engine._counters.control_calls)[quiet:]
            assert {call["call"] for call in calls} <= {"is_sleeping"}
            assert text_of(await scene.door.ask()) == WORDS

    asyncio.run(scenario())


def test_a_shutdown_in_mid_wake_begins_nothing_and_ends_in_time(tmp_path: Path) -> None:
    """S36: waiters are told 503 `draining` in their dialects, no step is begun, exit code 0."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await scene.door.settled("awake")
            reply = await scene.door.admin("/admin/sleep/text?level=2", "POST")
            assert reply.status == 200
            scene.engine._faults.add("wake_up=hang*1")
            wires = [await scene.door.begin(CHAT, chat_with()) for _ in range(2)]
            message = {
                "model": "text",
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "a"}],
            }
            wires.append(await scene.door.begin(MESSAGES, message))
            await scene.until(lambda: scene.engine._engine.busy == "wake_up")
            scene.door.signal(signal.SIGTERM)
            replies = [await wire.reply() for wire in wires]
            assert [reply.status for reply in replies] == [503] * 3
            assert replies[0].json["error"]["code"] == "draining"
            assert replies[2].json["error"]["type"] == "api_error"
            process = scene.door._process
            assert process is not None
            assert await asyncio.wait_for(process.wait(), 10) == 0
            scene.release()
            calls = [call["call"] for call in scene.engine._counters.control_calls]
            assert "collective_rpc" not in calls
            # The next one finishes what this one had begun, wanted or not.
            await scene.door.restart()
            await scene.door.settled("awake")
            assert text_of(await scene.door.ask()) == WORDS

    asyncio.run(scenario())


def test_a_shutdown_while_asleep_leaves_it_asleep(tmp_path: Path) -> None:
    """And the next front door finds it so: nothing is woken for the sake of a restart."""

    async def scenario() -> None:
        async with killable(tmp_path) as scene:
            await scene.door.settled("awake")
            await scene.door.admin("/admin/sleep/text?level=2", "POST")
            quiet = len(scene.engine._counters.control_calls)
            assert await scene.door.end(signal.SIGTERM) == 0
            await scene.door.start()
            await scene.door.settled("offloaded")
            calls = list(scene.engine._counters.control_calls)[quiet:]
            assert {call["call"] for call in calls} <= {"is_sleeping"}

    asyncio.run(scenario())
