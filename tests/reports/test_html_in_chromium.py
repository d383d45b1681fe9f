"""The page opened from disk in a real browser, driven over its DevTools protocol by a pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modelc.core.manifest import Manifest
from modelc.reports.comparison import compare_manifests
from modelc.reports.comparison_documents import comparison_page

from .records import render_html

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason=f"no browser: none of {', '.join(NAMES)} is installed"),
]


# The browser reads commands from descriptor 3 and writes answers to 4.
_LAUNCH = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(text), fcntl.F_DUPFD, 10) for text in sys.argv[1:3])
os.dup2(reading, 3), os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A headless Chromium with one tab; what it logs and asks of a network is kept."""

    def __init__(self, profile: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()  # we write and it reads; it writes and we read
        command = [
            sys.executable, "-c", _LAUNCH, str(ours[0]), str(theirs[1]), BROWSER, "--headless",
            "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._out, self._in = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb")
        self._rest = b""
        self._count = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        targets = self.ask("Target.getTargets")["targetInfos"]
        tab = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come before it are kept."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in.fileno(), 1 << 16)
            assert part, "the browser is gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def resize(self, width: int) -> None:
        """Show the page at this width in pixels."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)

    def run(self, script: str) -> Any:
        """The value of an expression in the page, once a promise is kept."""
        answer = self.ask(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """Console errors, exceptions and refusals so far."""
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        bad = []
        for event in self.events:
            method, told = event.get("method"), event.get("params", {})
            logged = told.get("entry", {}).get("level") in ("error", "warning")
            called = told.get("type") in ("error", "warning", "assert")
            if method == "Runtime.exceptionThrown" or logged or (
                method == "Runtime.consoleAPICalled" and called
            ):  # fmt: skip
                bad.append(event)
        return bad

    def requests(self) -> list[str]:
        """URLs that were asked for beside the page itself."""
        return [e["params"]["request"]["url"] for e in self.events
                 if e.get("method") == "Network.requestWillBeSent"
                 and not e["params"]["request"]["url"].endswith("report.html")]  # fmt: skip

    def close(self) -> None:
        self._session = ""
        self.ask("Browser.close")
        self._out.close()
        self._process.wait(timeout=30)
        self._in.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this file."""
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Callable[[str], Browser]:
    """`opened(html)`: the browser with that page, opened from disk."""

    def open_page(html: str) -> Browser:
        page = tmp_path / "report.html"
        page.write_text(html, encoding="utf-8")
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
        browser.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "light"}],
        )
        browser.resize(1280)
        browser.open(page)
        return browser

    return open_page


def test_a_click_through_the_page_gives_no_error_and_no_request(
    opened: Callable[[str], Browser], full: Manifest
) -> None:
    tab = opened(render_html(full))
    links = tab.run("document.querySelectorAll('a').length")
    assert links > 15
    for index in range(links):
        tab.run(f"document.querySelectorAll('a')[{index}].click()")
        target = tab.run("document.querySelector(location.hash).getBoundingClientRect().height")
        assert target > 0
    folded = tab.run("document.querySelectorAll('details').length")
    tab.run("document.querySelectorAll('summary').forEach(one => one.click())")
    assert folded == tab.run("document.querySelectorAll('details[open]').length") > 4
    tab.run("document.querySelectorAll('button').forEach(one => one.click())")
    assert tab.complaints() == []
    assert tab.requests() == []


def test_the_button_changes_the_colours_and_back(
    opened: Callable[[str], Browser], full: Manifest
) -> None:
    tab = opened(render_html(full))
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    tab.run("document.getElementById('theme').click()")
    dark = tab.run(ground)
    tab.run("document.getElementById('theme').click()")
    assert dark != light == tab.run(ground)


def test_a_dark_system_gives_a_dark_page_and_the_button_a_light_one(
    opened: Callable[[str], Browser], full: Manifest
) -> None:
    tab = opened(render_html(full))
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    tab.ask("Emulation.setEmulatedMedia", features=dark)
    assert tab.run(ground) != light
    tab.run("document.getElementById('theme').click()")
    assert tab.run(ground) == light


def test_a_command_is_copied_or_at_least_selected(
    opened: Callable[[str], Browser], full: Manifest
) -> None:
    tab = opened(render_html(full))
    tab.run("document.querySelector('.copy').click()")
    tab.run("new Promise(done => setTimeout(done, 100))")
    assert tab.run("getSelection().toString()").startswith("modelc export ")
    assert tab.run("document.querySelector('.copy').textContent") in ("Copied", "Selected")


@pytest.mark.parametrize("kind", ["full", "hostile", "large", "empty"])
@pytest.mark.parametrize("width", [420, 1280])
def test_no_page_is_wider_than_the_screen(
    opened: Callable[[str], Browser], made: Callable[[str], Manifest], kind: str, width: int
) -> None:
    tab = opened(render_html(made(kind)))
    tab.resize(width)
    tab.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.complaints() == []


def test_a_hostile_manifest_runs_no_script(
    opened: Callable[[str], Browser], hostile: Manifest
) -> None:
    tab = opened(render_html(hostile))
    assert (
        tab.run("document.images.length + document.querySelectorAll('iframe,object,link').length")
        == 0
    )
    assert tab.run("document.scripts.length") == 1
    assert tab.complaints() == []
    assert not [e for e in tab.events if e.get("method") == "Page.javascriptDialogOpening"]


def test_the_page_refuses_a_script_that_is_not_its_own_and_the_fault_is_seen(
    opened: Callable[[str], Browser], full: Manifest
) -> None:
    planted = '<script>document.title = "planted"</script></body>'
    tab = opened(render_html(full).replace("</body>", planted))
    assert tab.run("document.title") != "planted"
    assert tab.complaints() != []


def test_a_request_that_is_planted_is_seen(
    opened: Callable[[str], Browser], full: Manifest
) -> None:
    tab = opened(render_html(full).replace("</body>", '<img src="planted.png"></body>'))
    assert [url.rpartition("/")[2] for url in tab.requests()] == ["planted.png"]


def test_the_page_can_be_read_without_scripts(
    opened: Callable[[str], Browser], full: Manifest, tmp_path: Path
) -> None:
    tab = opened(render_html(full))
    tab.ask("Emulation.setScriptExecutionDisabled", value=True)
    tab.open(tmp_path / "report.html")
    tree = tab.ask("DOM.getDocument", depth=-1)
    found = tab.ask("DOM.querySelector", nodeId=tree["root"]["nodeId"], selector=".cell.failed")
    text = tab.ask("DOM.getOuterHTML", nodeId=found["nodeId"])["outerHTML"]
    assert "-58.5 dB" in text
    button = tab.ask("DOM.querySelector", nodeId=tree["root"]["nodeId"], selector="#theme[hidden]")
    assert button["nodeId"] > 0, "a button that would do nothing is not shown"


def test_a_comparison_opens_as_well(opened: Callable[[str], Browser], full: Manifest) -> None:
    tab = opened(comparison_page(compare_manifests(full, full)))
    assert "no change" in tab.run("document.querySelector('.banner').textContent")
    assert tab.complaints() == []
