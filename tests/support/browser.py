"""A real Chromium without a window: what a person sees, presses and hears of a page.

It resolves no name and so reaches nothing but the loopback. Waiting is for what the page shows.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.resources
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import SECONDS_MAX, wait_until

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--no-proxy-server",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions", "--no-first-run", "--lang=en",
    "--force-device-scale-factor=1", "--hide-scrollbars", "--disable-lcd-text",
    "--allow-insecure-localhost", "--ignore-certificate-errors",
)  # fmt: skip
WIDTH, HEIGHT = 1240, 860
NARROW = 390
COLOURS = 255
"""Of a picture at most, which makes the file a fraction of what the browser writes."""
FEWER_COLOURS = """
const [taken, most, done] = arguments;
const image = new Image(), canvas = document.createElement("canvas");
image.onload = () => {
  [canvas.width, canvas.height] = [image.width, image.height];
  const draw = canvas.getContext("2d");
  draw.drawImage(image, 0, 0);
  const found = new Uint32Array(draw.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  const parts = colour => [colour & 255, colour >> 8 & 255, colour >> 16 & 255];
  const rounded = colour => Math.min(8 * Math.round(colour / 8), 255);
  for (let at = 0; at < found.length; at++) {
    const [red, green, blue] = parts(found[at]).map(rounded);
    found[at] = red | green << 8 | blue << 16;
    counts.set(found[at], (counts.get(found[at]) || 0) + 1);
  }
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, most).map(each => each[0]);
  const far = (one, other) =>
    parts(one).reduce((sum, at, n) => sum + (at - parts(other)[n]) ** 2, 0);
  const nearest = new Map();
  for (const each of counts.keys())
    nearest.set(each, palette.reduce((best, other, index) =>
      far(each, other) < far(each, palette[best]) ? index : best, 0));
  let text = "";
  for (const each of found) text += String.fromCharCode(nearest.get(each));
  done([image.width, image.height, palette.map(parts), btoa(text)]);
};
image.src = "data:image/png;base64," + taken;
"""


def missing() -> list[str]:
    """Return what has to be installed before there can be a browser, in words."""
    found = [] if shutil.which(DRIVER) else [f"{DRIVER} (Debian: the package chromium-driver)"]
    if not any(shutil.which(each) for each in BROWSERS):
        found.insert(0, "Chromium (Debian: the package chromium)")
    return found


class Finding(Struct, frozen=True):
    """A rule that a page breaks, how grave that is, and where."""

    rule: str
    impact: str
    where: tuple[str, ...]


class Browser:
    """One window of a browser, which keeps its cookies until :meth:`forget`."""

    def __init__(self) -> None:
        """Start it; RuntimeError when it is not installed."""
        if absent := missing():
            raise RuntimeError(f"no browser to drive: install {' and '.join(absent)}")
        options = webdriver.ChromeOptions()
        options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
        for each in OPTIONS:
            options.add_argument(each)
        options.set_capability("goog:loggingPrefs", {"browser": "WARNING"})
        service = webdriver.ChromeService(shutil.which(DRIVER))
        self._driver = webdriver.Chrome(options, service)
        self._driver.set_script_timeout(SECONDS_MAX)
        self._driver.set_page_load_timeout(SECONDS_MAX)
        self.forget()

    def close(self) -> None:
        """End it."""
        self._driver.quit()

    def forget(self) -> None:
        """Be a new browser: no cookies, light, wide, with script."""
        self._command("Network.clearBrowserCookies")
        self.emulate(dark=False)
        self.emulate_width(WIDTH, HEIGHT)
        self.run_script(allowed=True)
        self._driver.get("about:blank")
        self.complaints()

    # How it is set up.

    def _command(self, name: str, **values: Any) -> Any:
        return self._driver.execute_cdp_cmd(name, values)

    def emulate(self, *, dark: bool) -> None:
        """Prefer dark pages, or light ones."""
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", features=features)

    def emulate_width(self, width: int, height: int = HEIGHT) -> None:
        """Have a screen of so many pixels."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def run_script(self, *, allowed: bool) -> None:
        """Run the scripts of pages that are opened from now on, or none."""
        self._command("Emulation.setScriptExecutionDisabled", value=not allowed)

    # What is seen.

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is there."""
        self._driver.get(url)

    @property
    def address(self) -> str:
        """Return what the address line shows."""
        return self._driver.current_url

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements."""
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Return the only one."""
        (found,) = self.all(selector)
        return found

    def text(self, selector: str = "body") -> str:
        """Return the text of the first such element as a person sees it; empty without one."""
        for _ in range(10):
            # A page that renews itself may replace it between the two.
            with contextlib.suppress(StaleElementReferenceException):
                found = self.all(selector)
                return found[0].text if found else ""
        raise AssertionError(f"the page never stands still. {selector}")

    def texts(self, selector: str) -> list[str]:
        """Return the text of each such element, read at once."""
        found: list[str] = self.script(
            "return [...document.querySelectorAll(arguments[0])]"
            ".map(each => each.innerText.trim())",
            selector,
        )
        return found

    def wait(self, reached: Callable[[], bool]) -> None:
        """Wait until the page has come to something."""

        def is_reached() -> bool:
            # While a page makes way for another one there is nothing to be seen.
            with contextlib.suppress(WebDriverException):
                return reached()
            return False

        wait_until(is_reached, words=lambda: f"{self.address}: {self.text()[:2000]}")

    def script(self, text: str, *values: object) -> Any:
        """Look at the page by a script of the test's own."""
        return self._driver.execute_script(text, *values)

    def click(self, selector: str) -> None:
        """Click the first such element."""
        for _ in range(10):
            # A page that renews itself may replace it just now.
            with contextlib.suppress(StaleElementReferenceException):
                return self.all(selector)[0].click()
        raise AssertionError(f"the page never stands still. {selector}")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        actions = ActionChains(self._driver)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    def point_at(self, element: WebElement) -> None:
        """Move the pointer there."""
        ActionChains(self._driver).move_to_element(element).perform()

    @property
    def focused(self) -> str:
        """Return what a screen reader says of the element that has the focus: its name."""
        found: str = self.script(
            "const at = document.activeElement;"
            "const title = at.querySelector(':scope > title');"
            "return at.getAttribute('aria-label') || at.name || title && title.textContent ||"
            " at.innerText || at.tagName"
        )
        return found.strip()

    def has_outline(self) -> bool:
        """Say whether a person sees where the focus is."""
        found: bool = self.script(
            "const at = document.activeElement;"
            "const seen = each => { const style = getComputedStyle(each);"
            " return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0"
            " || each.tagName === 'rect' && parseFloat(style.strokeWidth) >= 3; };"
            "return [at, ...at.children].some(seen)"
        )
        return found

    def overflows(self) -> bool:
        """Say whether the page is wider than the screen."""
        found: bool = self.script(
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        return found

    def findings(self) -> list[Finding]:
        """Return all that axe finds, by every rule that it has."""
        source = importlib.resources.files("axe_core_python") / "axe.min.js"
        self.script(source.read_text("utf-8"))
        found = self._driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "const on = axe.getRules().map(each => [each.ruleId, {enabled: true}]);"
            "axe.run(document, {rules: Object.fromEntries(on), resultTypes: ['violations']})"
            ".then(done)"
        )
        assert found["passes"], "axe looked at nothing"
        return [
            Finding(each["id"], each["impact"], tuple(str(n["target"]) for n in each["nodes"]))
            for each in found["violations"]
        ]

    def reword(self, words: Mapping[str, str]) -> None:
        """Show some words of the page as others."""
        self.script(
            "const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);"
            "while (walk.nextNode()) for (const [from, to] of Object.entries(arguments[0]))"
            " walk.currentNode.data = walk.currentNode.data.replaceAll(from, to);",
            dict(words),
        )

    def picture(self, path: Path) -> Path:
        """Write what is seen as PNG; the page is left."""
        taken = self._driver.get_screenshot_as_base64()
        # Elsewhere: the console's pages load no picture out of a script, and no script may draw.
        self._driver.get("about:blank")
        width, height, palette, text = self._driver.execute_async_script(
            FEWER_COLOURS, taken, COLOURS
        )
        path.write_bytes(indexed_png(width, height, palette, base64.b64decode(text)))
        return path

    def complaints(self) -> list[str]:
        """Return what the browser itself found wrong since the last call: policies, scripts."""
        found = [each["message"] for each in self._driver.get_log("browser")]  # type: ignore[no-untyped-call]
        # How fast a canvas is concerns axe, which measures letters with one.
        return [each for each in found if not each.startswith("rendering ")]


def indexed_png(width: int, height: int, palette: Sequence[Sequence[int]], data: bytes) -> bytes:
    """Return a PNG of ``data``, a byte a pixel that says which colour of the palette it has."""
    rows = b"".join(b"\0" + data[at : at + width] for at in range(0, len(data), width))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(part for colour in palette for part in colour)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """Yield a browser that ends with the block."""
    browser = Browser()
    try:
        yield browser
    finally:
        browser.close()


def cells(browser: Browser, table: str) -> list[Sequence[str]]:
    """Return the rows of a table as a person reads them, without headings of groups."""
    found: list[Sequence[str]] = browser.script(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr:not(.group)')].map("
        "row => [...row.cells].map(cell => cell.innerText.trim()))",
        table,
    )
    return found
