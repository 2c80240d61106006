"""Sizes and schemes of the browser, and figures read from its page."""

import base64
import pathlib
import time
from collections.abc import Callable

from selenium.webdriver.common.keys import Keys

PICTURES = pathlib.Path(__file__).resolve().parents[2] / ".cache/page"
DESKTOP, PHONE = (1280, 900), (390, 844)
# A model that is swapped, one that is unloaded, and one that cannot be loaded.
SWAPPED, UNLOADED, BROKEN = "stamped", "half_plus_two", "broken"
WAIT_S = 60

# WCAG 2.2 AA: text, and graphics that carry meaning.
TEXT_CONTRAST_MIN, GRAPHIC_CONTRAST_MIN = 4.5, 3.0

# Every visible text and every line of a chart with its contrast to its background.
CONTRASTS = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255];
};
const contrast = (a, b) => {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const texts = [], lines = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
  if (!words || !node.checkVisibility() || node.closest("noscript")) continue;
  const style = getComputedStyle(node);
  texts.push([words, contrast(rgba(node instanceof SVGElement ? style.fill : style.color), behind(node))]);
}
for (const node of document.querySelectorAll(".series, line.mark")) {
  lines.push([node.getAttribute("class"), contrast(rgba(getComputedStyle(node).stroke), behind(node))]);
}
return { texts, lines };
"""


def look(driver, size: tuple[int, int], scheme: str = "light", motion: str = "no-preference") -> None:
    """Sets a screen of this size that prefers this scheme."""
    width, height = size
    phone = width < 500
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone},
    )
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": motion},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def wait(what: Callable[[], object], words: str, timeout_s: float = WAIT_S):
    """Waits until `what` returns a true value. Returns that value."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s} s: {words}")


def js(driver, expression: str, *arguments):
    return driver.execute_script(f"return {expression}", *arguments)


def text(driver, selector: str) -> str:
    """Returns the text of the first element."""
    return js(driver, "document.querySelector(arguments[0]).textContent", selector)


def texts(driver, selector: str) -> list[str]:
    """Returns the text of each element."""
    return js(driver, "[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)


def state(driver) -> str:
    """Returns the state that the page's form shows."""
    return js(driver, "document.getElementById('state').dataset.state")


def open_page(driver, url: str) -> None:
    """Opens the page and waits until it shows data."""
    driver.get(f"{url}/")
    wait(lambda: connection(driver) == "live", "the page is live")


def connection(driver) -> str:
    return js(driver, "document.body.dataset.connection")


def open_model(driver, url: str, model: str) -> None:
    """Opens the view of one model and waits until it shows figures."""
    driver.get(f"{url}/#model={model}")
    wait(lambda: js(driver, "document.querySelector('#model .versions tbody tr')"), f"the view of {model}")


def log_in(driver, key: str) -> None:
    """Sends the form of the login by keyboard."""
    focus = "document.readyState === 'complete' && document.activeElement.id"
    wait(lambda: js(driver, focus) == "key", "the field has the focus")
    driver.switch_to.active_element.send_keys(key, Keys.ENTER)


def in_model(driver, model: str, selector: str) -> list[str]:
    """Returns the texts of the elements of a model's row in the overview, or of its view."""
    script = "[...document.querySelectorAll(`[data-model=\"${arguments[0]}\"] ${arguments[1]}`)].map((e) => e.textContent)"
    return js(driver, script, model, selector)


def picture(driver, path: pathlib.Path) -> None:
    """Takes a screenshot of the whole page, also below the window."""
    width, height = js(driver, "[innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path.write_bytes(base64.b64decode(taken["data"]))
