"""A headless Chromium driven through its debugging pipe: nothing to install but the browser."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

BINARY = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
TIMEOUT_S = 60.0


class Browser:
    """A headless browser; ``page`` opens tabs in it."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def place_pipes() -> None:
            kept = os.dup(to_browser), os.dup(from_browser)
            os.dup2(kept[0], 3)
            os.dup2(kept[1], 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        flags += ["--no-first-run", "--disable-background-networking", "--disable-sync"]
        self.process = subprocess.Popen(
            [BINARY, *flags, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place_pipes,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._pending = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser ended"
            self._pending += data
        message, self._pending = self._pending.split(b"\0", 1)
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def page(self, width: int = 1280, *, dark: bool = False) -> Page:
        """A tab of its own, ``width`` pixels wide."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command to this tab."""
        return self.browser.call(method, self.session, **params)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is drawn."""
        self.call("Page.navigate", url=path.as_uri())
        self.run(
            "new Promise(done => {"
            " const drawn = () => requestAnimationFrame(() => requestAnimationFrame(done));"
            " document.readyState === 'complete' ? drawn() : addEventListener('load', drawn); })"
        )

    def run(self, script: str) -> Any:
        """The value of a script in the page; promises are awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True,
            userGesture=True,
        )  # fmt: skip
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """One key, as a person would press it."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        return [
            event
            for event in self.browser.events
            if event.get("sessionId") == self.session and event.get("method") in methods
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """Console messages, exceptions, log entries and dialogs since the start."""
        return self._events(
            "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded",
            "Page.javascriptDialogOpening",
        )  # fmt: skip

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        asked = self._events("Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def close(self) -> None:
        """Close the tab."""
        self.call("Page.close")
