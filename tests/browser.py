"""Chromium without a window, driven over a pipe by the DevTools protocol, with no other library."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Chromium reads messages from descriptor 3 and writes to 4. Another program moves the pipes there,
# because a function of ours between fork and exec is unsafe in a process with threads.
LAUNCH = (
    "import fcntl, os, sys; "
    "read, write = (fcntl.fcntl(int(x), fcntl.F_DUPFD, 10) for x in sys.argv[1:3]); "
    "os.dup2(read, 3), os.dup2(write, 4); "
    "os.execvp(sys.argv[3], sys.argv[3:])"
)
TIMEOUT = 60  # seconds to wait for an answer or a condition


def find_browser():
    """Return the path of an installed Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a running browser.

    Args:
      profile: Empty folder for the files of the browser.
    """

    def __init__(self, profile):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        flags = (
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"),
            *("--hide-scrollbars", "--force-device-scale-factor=1", f"--user-data-dir={profile}"),
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands), str(answers), find_browser(), *flags],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, None
        self.requests, self.errors = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Call a method of the DevTools protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._notice(answer)

    def _read(self):
        """Return the next message of the browser."""
        while b"\0" not in self._buffer:
            is_readable, _, _ = select.select([self._answers], [], [], TIMEOUT)
            assert is_readable, f"the browser has not answered for {TIMEOUT} s"
            received = os.read(self._answers, 1 << 20)
            assert received, "the browser has ended"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _notice(self, event):
        """Keep the addresses that a page requests, and its errors."""
        parameters = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def open(
        self, path, *, width=1200, height=900, dark=False, ready="document.body.dataset.ready"
    ):
        """Open a file in a window of this size, and wait until `ready` is true."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.requests, self.errors = [], []
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for(f"document.readyState === 'complete' && {ready}")

    def resize(self, width, height):
        """Set the size of the window in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def evaluate(self, expression):
        """Return the value of a JavaScript expression; wait for a promise."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition):
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + TIMEOUT
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, f"{condition} stays false; errors: {self.errors}"
            time.sleep(0.02)

    def move_to(self, x, y, *, click=False):
        """Move the mouse to a point of the window, and click there if `click` is True."""
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def press(self, key):
        """Press and release a key, such as "ArrowRight" or "v"."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def screenshot(self, path):
        """Write a picture of the window as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self):
        """End the browser."""
        os.close(self._commands)
        os.close(self._answers)
        self._process.terminate()
        self._process.wait()
