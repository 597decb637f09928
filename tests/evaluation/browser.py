"""Chromium without a window, driven over a pipe in its own protocol: no driver, no port, no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or ("/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += [
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
# The protocol is spoken on the descriptors 3 and 4. JAX's threads forbid to run Python between fork and exec, so another
# process moves them there.
LAUNCH = """
import fcntl, os, sys
there, back = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(there, 3), os.dup2(back, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 60.0  # seconds


class Browser:
    """One browser with one page.

    Attributes:
        messages: What the console of the page said, and errors of its scripts.
        requests: Addresses that the page asked for.
    """

    def __init__(self, folder):
        (there, self._write), (self._read, back) = os.pipe(), os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(there), str(back), CHROMIUM, *FLAGS, f"--user-data-dir={folder}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(there, back), **quiet)
        os.close(there)
        os.close(back)
        self._rest, self._number, self._session, self._answers, self._loaded = b"", 0, None, {}, False
        self.messages, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Ask the browser, wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        number = self._number
        self._wait(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, path, width=1200, height=900, dark=False, media=None, touch=False):
        """Load a file at a size of the window, in light or dark colours."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media or "", features=features)
        self._loaded = False
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        self._wait(lambda: self._loaded, "loading")

    def run(self, script):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def mouse(self, kind, x, y, **more):
        """Move, press or release the mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start, end):
        """Press the left button, move, release it."""
        held = {"button": "left", "buttons": 1, "clickCount": 1}
        self.mouse("mousePressed", *start, **held)
        for n in range(1, 6):
            self.mouse("mouseMoved", *(a + (b - a) * n / 5 for a, b in zip(start, end, strict=True)), button="left", buttons=1)
        self.mouse("mouseReleased", *end, **held)

    def press(self, key, **more):
        """Press a key and release it."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def screenshot(self, path, whole=True):
        """A picture of the page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(self._clip() if whole else {}))
        Path(path).write_bytes(base64.b64decode(data["data"]))

    def pdf(self, path=None):
        """The printed page."""
        found = base64.b64decode(self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
        if path is not None:
            Path(path).write_bytes(found)
        return found

    def close(self):
        """End the browser."""
        try:
            self._session = None
            os.write(self._write, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _clip(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _wait(self, done, what):
        until = time.monotonic() + PATIENCE
        while not done():
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"Chromium did not answer in {PATIENCE:.0f} s: {what}"
            received = os.read(self._read, 1 << 20)
            assert received, f"Chromium ended: {what}"
            *messages, self._rest = (self._rest + received).split(b"\0")
            for each in messages:
                self._take(json.loads(each))

    def _take(self, message):
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, params = message["method"], message["params"]
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.messages.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(f"{params['type']}: {params['args']}")
        elif method == "Runtime.exceptionThrown":
            self.messages.append(f"exception: {params['exceptionDetails']}")
