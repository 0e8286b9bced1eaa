"""Drives a headless Chromium over a pipe, with the DevTools protocol.

There is one browser for all tests and a new tab for each test.  Every command waits for its answer; no
code here waits for a fixed time.  Exceptions and requests of the page are kept, so that a test can assert
that there were none.
"""

import json
import os
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import Any, Self

_PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")  # the first has no windows
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
          "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
          "--use-angle=swiftshader", "--enable-unsafe-swiftshader")  # fmt: skip
_KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def chromium_path() -> str | None:
    """Return the path of Chromium, None where it is not installed."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


class Browser:
    """A Chromium process; `events` are the messages that were no answers."""

    def __init__(self) -> None:
        path = chromium_path()
        assert path is not None
        self._profile = tempfile.mkdtemp(prefix="sfsample-chromium-")
        chromium_in, self._commands = os.pipe()
        answers, chromium_out = os.pipe()
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._numbers = count(1)
        self._pending = b""
        self.events: list[dict[str, Any]] = []

        def place_pipes() -> None:
            """Make the pipes descriptors 3 and 4, as --remote-debugging-pipe expects them."""
            copies = [os.dup(fd) for fd in (chromium_in, chromium_out)]
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        self._process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=place_pipes,  # noqa: PLW1509 - subprocess cannot give a descriptor a number
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(chromium_in)
        os.close(chromium_out)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that arrive before it are kept."""
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        os.write(self._commands, json.dumps(request).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def wait_for_event(self) -> None:
        """Wait for one event."""
        self.events.append(self._message())

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            data = self._answers.read(1 << 20)
            assert data, "Chromium has ended"
            self._pending += data
        text, _, self._pending = self._pending.partition(b"\0")
        return json.loads(text)

    def close(self) -> None:
        """End Chromium and remove its profile directory."""
        self.call("Browser.close")
        self._process.wait()
        self._answers.close()
        os.close(self._commands)
        shutil.rmtree(self._profile, ignore_errors=True)


class Tab:
    """A tab of the browser with one page."""

    def __init__(self, browser: Browser, *, width: int = 1000, height: int = 700, dark: bool = False) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                   mobile=width < 600)  # fmt: skip
        scheme = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str, ready: str = "true") -> None:
        """Open a page; wait until it is loaded and the JavaScript expression `ready` is true."""
        assert "errorText" not in self._call("Page.navigate", url=url)
        while not self._events("Page.loadEventFired"):
            self._browser.wait_for_event()
        self.wait(ready)

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true; the page evaluates it every 10 ms."""
        poll = f"const poll = () => ({condition}) ? done(true) : setTimeout(poll, 10);"
        self.js(f"new Promise((done) => {{ {poll} poll(); }})")

    def js(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, or of the promise that it returns."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, x: float, y: float) -> None:
        """Move the mouse to a point and click."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click_on(self, selector: str) -> None:
        """Click the middle of the element that a CSS selector finds."""
        script = f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect();"
        x, y = self.js(f"{script} return [r.x + r.width / 2, r.y + r.height / 2]; }})()")
        self.click(x, y)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        code = {"windowsVirtualKeyCode": _KEYS[key]} if key in _KEYS else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self._call("Input.insertText", text=text)

    def download(self, selector: str, directory: Path) -> tuple[str, bytes]:
        """Click on what saves a file; return its name and contents."""
        events, behaviour = self._browser.events, {"behavior": "allowAndName", "downloadPath": str(directory)}
        self._browser.call("Browser.setDownloadBehavior", eventsEnabled=True, **behaviour)
        begin = len(events)
        self.click_on(selector)
        while not any(event["params"].get("state") == "completed" for event in events[begin:]):
            self._browser.wait_for_event()
        started = next(e["params"] for e in events[begin:] if e["method"] == "Browser.downloadWillBegin")
        return started["suggestedFilename"], (directory / started["guid"]).read_bytes()

    def set_time_zone(self, name: str) -> None:
        """Set the time zone of the reader."""
        self._call("Emulation.setTimezoneOverride", timezoneId=name)

    def text(self, selector: str) -> str:
        """Return the text of the element that a CSS selector finds."""
        return self.js(f"document.querySelector({selector!r}).textContent")

    def screenshot(self) -> bytes:
        """Return a PNG."""
        from base64 import b64decode

        return b64decode(self._call("Page.captureScreenshot")["data"])

    def count_cpu(self) -> None:
        """Begin to measure the CPU time of the page's main thread."""
        self._call("Performance.enable", timeDomain="threadTicks")

    def cpu_seconds(self) -> float:
        """Return the CPU time of the page's main thread since the page was opened, in seconds."""
        metrics = self._call("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")

    def exceptions(self) -> list[str]:
        """Return the uncaught exceptions of the page."""
        return [str(event["params"]) for event in self._events("Runtime.exceptionThrown")]

    def requests(self) -> list[str]:
        """Return the URLs that the page requested."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def _events(self, method: str) -> list[dict[str, Any]]:
        events = self._browser.events
        return [
            event for event in events if event["method"] == method and event.get("sessionId") == self._session
        ]
