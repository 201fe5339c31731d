"""A headless Chromium for tests of pages, driven over its debugging pipe; needs no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str:
    """The program; where there is none, an error that says what to install."""
    for name in (os.environ.get("CHROMIUM", ""), *NAMES):
        if name and (found := shutil.which(name)):
            return found
    raise RuntimeError(
        f"no browser: none of {', '.join(NAMES)} is on the PATH. `make test` installs it as root (apt-get install "
        "chromium); or name one with CHROMIUM=..."
    )


class Browser:
    """One tab. Errors of the page's script are kept in `errors`, what it loads in `requests`."""

    def __init__(self, profile: Path, size: tuple[int, int] = (1600, 950)) -> None:
        to_browser, commands = os.pipe()
        answers, from_browser = os.pipe()

        def hand_over() -> None:  # the browser reads from 3 and writes to 4
            os.dup2(to_browser, 60)
            os.dup2(from_browser, 61)
            os.dup2(60, 3)
            os.dup2(61, 4)

        self.process = subprocess.Popen(
            [
                *(find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--no-first-run", "--hide-scrollbars=false", f"--user-data-dir={profile}"),
                *("--remote-debugging-pipe", f"--window-size={size[0]},{size[1]}", "about:blank"),
            ],
            preexec_fn=hand_over,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.commands, self.answers = commands, answers
        self.rest = b""
        self.count = 0
        self.session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        (target,) = [one for one in self.wait_for_page() if one["type"] == "page"][:1]
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*size)

    def wait_for_page(self) -> list[dict[str, Any]]:
        for _ in range(100):
            targets: list[dict[str, Any]] = self.call("Target.getTargets")["targetInfos"]
            if any(target["type"] == "page" for target in targets):
                return targets
            time.sleep(0.1)
        raise RuntimeError("the browser opened no page")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol, and its result."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            piece = os.read(self.answers, 1 << 20)
            if not piece:
                raise RuntimeError(f"the browser has ended with status {self.process.wait()}")
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def open(self, url: str) -> float:
        """Loads a page; gives the seconds until its script has run and the first picture is there."""
        begin = time.monotonic()
        self.call("Page.navigate", url=url)
        while self.run("document.readyState") != "complete" or not self.run("!!document.querySelector('main > *')"):
            if time.monotonic() - begin > 30:
                raise RuntimeError(f"the page does not show: {self.errors}")
            time.sleep(0.01)
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - begin

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description"))
        return result["result"].get("value")

    def key(self, key: str) -> None:
        """Presses a key, by its name in KeyboardEvent.key."""
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        codes |= {"PageUp": 33, "PageDown": 34, "End": 35, "Home": 36}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        down = {"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.settle()

    def click(self, script: str) -> None:
        """Clicks the middle of the element that the expression gives, as a mouse does."""
        box = self.run(
            f"(() => {{ const r = ({script}).getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
        self.settle()

    def settle(self) -> None:
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer_dark(self, dark: bool) -> None:
        """What the system's setting for colours is."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        os.close(self.commands)
        os.close(self.answers)
        self.process.kill()
        self.process.wait()
