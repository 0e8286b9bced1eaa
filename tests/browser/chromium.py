"""A Chromium without a window, driven over a pipe with the DevTools protocol.

Law: one browser for a file of tests, one fresh tab for a test.  It is asked and it answers; nothing here
waits for a length of time.  What the page throws or requests is kept, so that a test can say it was nothing.
"""

import json
import os
import shutil
import subprocess
import tempfile
from itertools import count
from typing import Any, Self

_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
          "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
          "--use-angle=swiftshader", "--enable-unsafe-swiftshader")  # fmt: skip
_KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def find() -> str | None:
    """Return the path of Chromium."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """The process."""

    def __init__(self) -> None:
        path = find()
        assert path is not None
        self._profile = tempfile.mkdtemp(prefix="sfsample-chromium-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        self._input = os.fdopen(self._from, "rb", buffering=0)
        self._numbers = count(1)
        self._pending = b""
        self.events: list[dict[str, Any]] = []

        def place() -> None:
            """Put the pipes where Chromium looks for them."""
            high = [os.dup(fd) for fd in (to_read, to_write)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=place,  # noqa: PLW1509 - nothing else can put a descriptor at a number
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Ask, and return the answer; events that come meanwhile are kept."""
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def listen(self) -> None:
        """Wait for one event."""
        self.events.append(self._message())

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            data = self._input.read(1 << 20)
            assert data, "Chromium has ended"
            self._pending += data
        text, _, self._pending = self._pending.partition(b"\0")
        return json.loads(text)

    def close(self) -> None:
        """End it and remove what it kept."""
        self.call("Browser.close")
        self._process.wait()
        self._input.close()
        os.close(self._to)
        shutil.rmtree(self._profile, ignore_errors=True)


class Tab:
    """One page."""

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
        """Go to a page; wait until it has loaded and the expression `ready` is true on it."""
        assert "errorText" not in self._call("Page.navigate", url=url)
        while not self._own("Page.loadEventFired"):
            self._browser.listen()
        self.wait(ready)

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true; the page itself looks, again and again."""
        look = f"const look = () => ({condition}) ? done(true) : setTimeout(look, 10);"
        self.js(f"new Promise((done) => {{ {look} look(); }})")

    def js(self, expression: str) -> Any:
        """Return the value of an expression (or of its promise)."""
        said = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def click(self, x: float, y: float) -> None:
        """Move the mouse there and click."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click_on(self, selector: str) -> None:
        """Click in the middle of an element."""
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
        """Type into what has the focus."""
        self._call("Input.insertText", text=text)

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return self.js(f"document.querySelector({selector!r}).textContent")

    def screenshot(self) -> bytes:
        """Return a PNG."""
        from base64 import b64decode

        return b64decode(self._call("Page.captureScreenshot")["data"])

    def count_cpu(self) -> None:
        """Begin to count what the page's main thread uses."""
        self._call("Performance.enable", timeDomain="threadTicks")

    def cpu_seconds(self) -> float:
        """Return the CPU time of the page's main thread since it was navigated to."""
        metrics = self._call("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")

    def exceptions(self) -> list[str]:
        """Return what the page threw."""
        return [str(event["params"]) for event in self._own("Runtime.exceptionThrown")]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        return [event["params"]["request"]["url"] for event in self._own("Network.requestWillBeSent")]

    def _own(self, method: str) -> list[dict[str, Any]]:
        events = self._browser.events
        return [one for one in events if one["method"] == method and one.get("sessionId") == self._session]
