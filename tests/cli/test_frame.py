"""Issue: lazy commands, one-line errors, stable exit codes, nothing heavy at start-up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import kvbench
from kvbench import errors
from kvbench.cli import frame, main
from kvbench.cli.table import COMMANDS, Entry

WAIT = "print('waiting', flush=True); time.sleep(60)"
HEAVY = {"numpy", "rich", "msgspec", "pandas", "jinja2", "plotly", "httptools", "gguf", "asyncio"}


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvbench", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Run a command that raises the given exception, through ``main``."""

    def invoke(error: BaseException) -> int:
        @click.command("fail")
        def command() -> None:
            raise error

        module = type(sys)("failing_command")
        module.command = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "failing_command", module)
        monkeypatch.setitem(COMMANDS, "fail", Entry("failing_command", "Fails."))
        return main(["fail"])

    return invoke


def test_help_imports_nothing_heavy_and_no_command() -> None:
    code = (
        "import sys, kvbench.cli as c; code = c.main(['--help']);"
        "print(code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    exit_code, *loaded = done.stderr.split()
    assert exit_code == "0"
    assert not HEAVY & set(loaded)
    assert not {entry.module for entry in COMMANDS.values()} & set(loaded)
    for name, entry in COMMANDS.items():
        assert name in done.stdout and entry.help.split()[0] in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_the_table_exists_and_says_the_same(name: str) -> None:
    command = frame.group.get_command(click.Context(frame.group), name)
    assert command is not None and command.name == name
    help_line = (command.help or "").split("\n\n")[0].replace("\n", " ")
    assert " ".join(help_line.split()) == COMMANDS[name].help
    assert len(COMMANDS[name].help) <= 62, "does not fit one line of an 80-column terminal"


WRITES_FILES = {"assets pull", "assets path", "assets clean", "bundle", "export", "init"}


def test_every_command_with_a_result_has_json() -> None:
    without = set()
    for name in COMMANDS:
        command = frame.group.get_command(click.Context(frame.group), name)
        assert command is not None
        parts = {name: command}
        if isinstance(command, click.Group):
            parts = {f"{name} {part}": each for part, each in command.commands.items()}
        for full, each in parts.items():
            if not any("--json" in parameter.opts for parameter in each.params):
                without.add(full)
    assert without <= WRITES_FILES


def test_version_is_the_packages() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"kvbench {kvbench.__version__}\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["siutes"], "no command 'siutes'; did you mean 'suites'?"),
        (["--frobnicate"], "No such option"),
        (["suites", "--frobnicate"], "(see kvbench suites --help)"),
        (["suites", "extra"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(args: list[str], says: str) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_arguments_print_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "Measure:" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.UsageError("no\nsuch suite"), 2, "kvbench: no such suite"),
        (errors.SettingError("depth", 9, "0 to 8"), 2, "kvbench: depth = 9 (argument) is not"),
        (errors.ExactnessError("differs"), 4, "kvbench: differs"),
        (errors.EnvironmentInvalid("throttled"), 5, "kvbench: throttled"),
        (errors.ArmFailure("crashed"), 6, "kvbench: crashed"),
        (errors.DeviceError("copy failed"), 6, "kvbench: copy failed"),
        (KeyboardInterrupt(), 130, "kvbench: interrupted"),
        (FileNotFoundError(2, "No such file", "a/b"), 2, "kvbench: a/b: No such file"),
    ],
)
def test_known_failures_have_their_code_and_one_line(
    failing: Callable[[BaseException], int],
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    assert failing(error) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(line) and err.count("\n") == 1


def test_a_bug_names_the_file_that_holds_its_traceback(
    failing: Callable[[BaseException], int],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert failing(ZeroDivisionError("oops")) == 70
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "internal error: ZeroDivisionError: oops" in err
    path = err.split("traceback in ")[1].split(";")[0]
    assert "raise error" in Path(path).read_text(encoding="utf-8")


def test_debug_shows_the_traceback(
    failing: Callable[[BaseException], int],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVBENCH_DEBUG", "1")
    assert failing(ZeroDivisionError("oops")) == 70
    assert "Traceback (most recent call last)" in capfd.readouterr().err


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("waits", [WAIT, f"exec({WAIT!r})"])
def test_signals_end_in_130_without_a_traceback(tmp_path: Path, signum: int, waits: str) -> None:
    """Wherever they arrive; under ``-m`` CPython treats what left an ``exec`` in its own way."""
    code = (
        "import signal, sys, time, types, click\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in background jobs
        "from kvbench.cli import main\n"
        "from kvbench.cli.table import COMMANDS, Entry\n"
        "@click.command('wait')\n"
        "def command():\n"
        f"    {waits}\n"
        "m = types.ModuleType('waiting'); m.command = command; sys.modules['waiting'] = m\n"
        "COMMANDS['wait'] = Entry('waiting', 'Waits.')\n"
        "sys.exit(main(['wait']))\n"
    )
    (tmp_path / "waiter.py").write_text(code)
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen(
        [sys.executable, "-m", "waiter"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "waiting\n"
        child.send_signal(signum)
        _, err = child.communicate(timeout=300)
    assert child.returncode == 130
    assert err == "kvbench: interrupted\n"


def test_a_closed_pipe_is_quiet_and_not_a_verdict() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "kvbench", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


def test_shell_completion_offers_the_commands() -> None:
    done = run(_KVBENCH_COMPLETE="bash_complete", COMP_WORDS="kvbench su", COMP_CWORD="1")
    assert "plain,suites" in done.stdout


def test_arguments_that_are_no_text_are_refused_before_they_are_stored() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvbench", "ab", b"a\xff.toml"], capture_output=True, timeout=300
    )
    assert done.returncode == 2 and done.stdout == b""
    assert re.fullmatch(rb"kvbench: argument 2, 'a\\udcff.toml', is not text [^\n]*\n", done.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_the_null_device(closed: str) -> None:
    script = f'"$0" -m kvbench gate --list {closed}'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, timeout=300)
    assert done.returncode == 0 and done.stderr == b""


@pytest.mark.parametrize("command", ["--help", "gate --list"])
def test_output_that_cannot_be_written_is_one_line(command: str) -> None:
    script = f'"$0" -m kvbench {command} >/dev/full'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr == b"kvbench: cannot write: No space left on device\n"


@pytest.mark.parametrize("variable", ["KVBENCH_CACHE", "KVBENCH_DATA"])
def test_a_home_that_nobody_has_is_refused(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvbench.assets.cache import cache_root
    from runner.calibration import data_root

    monkeypatch.setenv(variable, "~no-such-user/x")
    with pytest.raises(errors.UsageError, match="~no-such-user/x: no home directory"):
        (cache_root if variable == "KVBENCH_CACHE" else data_root)()


def test_an_empty_suite_name_is_not_the_default_suite() -> None:
    done = run("ab", "")
    assert done.returncode == 2 and "suite '': neither a bundled suite" in done.stderr


def test_a_report_that_cannot_be_written_is_refused_before_the_gate_runs(tmp_path: Path) -> None:
    done = run("gate", "structure", "--junit", str(tmp_path / "absent" / "gate.xml"))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "gate.xml cannot be written" in done.stderr


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
@pytest.mark.parametrize("words", [["predict", "--machine"], ["verify"]], ids=" ".join)
def test_a_file_without_an_end_is_refused(words: list[str]) -> None:
    done = run(*words, "/dev/zero")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvbench: /dev/zero: a device, not a file\n"


def test_suites_are_listed_in_columns() -> None:
    lines = run("suites").stdout.splitlines()
    told = [line for line in lines if not line.startswith(" ")]
    assert len({re.search(r" cells? +", line).end() for line in told}) == 1
