"""Debian's Chromium without a screen, and whether there is one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any


def why_not() -> str:
    """Returns why no browser can be started here; "": one can."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: apt-get install chromium chromium-driver"
    return ""


@contextlib.contextmanager
def browser(width: int, height: int) -> Iterator[Any]:
    """Starts a browser with a window of this size, and ends it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        resize(driver, width, height)
        yield driver
    finally:
        driver.quit()


def resize(driver: Any, width: int, height: int) -> None:
    """Gives the page this size, also one narrower than a window can be."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(driver: Any, scheme: str) -> None:
    """Tells pages that the user likes it "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def errors(driver: Any) -> list[str]:
    """Returns what the browser complained about."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
