"""Checks of a part of a page: what assistive technology gets, and axe-core where it can be had."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.notebook.browser import THEMES, NotebookPage

#: The version that is tested with.
AXE = "axe-core@4.10.2"
#: The roles of what can be used, which need a name.
_CONTROLS = {
    "button", "checkbox", "combobox", "link", "listbox", "option", "radio", "searchbox", "slider", "spinbutton",
    "switch", "tab", "textbox",
}  # fmt: skip


#: Controls with a `tabindex` of -1 are reached by other keys, radio buttons that are not checked by arrow keys.
_FIND_CONTROLS = """(selector) => {
  const names = "a[href], button, input, select, textarea, summary, [tabindex], [contenteditable=true]";
  window.controls = [...document.querySelector(selector).querySelectorAll(names)].filter((element) =>
    element.tabIndex >= 0 && !element.disabled && element.checkVisibility({ visibilityProperty: true })
    && (element.type !== "radio" || element.checked));
  controls[0].focus();
  window.focused = new Set([document.activeElement]);
  return controls.length;
}"""


def unnamed_controls(page: NotebookPage, selector: str) -> list[str]:
    """Return the roles of the controls inside an element that have no name in the browser's accessibility tree."""
    session = page.browser_page.context.new_cdp_session(page.browser_page)
    session.send("Accessibility.enable")
    root = session.send("DOM.getDocument")["root"]
    element = session.send("DOM.querySelector", {"nodeId": root["nodeId"], "selector": selector})
    tree = session.send("Accessibility.queryAXTree", {"nodeId": element["nodeId"]})["nodes"]
    session.detach()
    controls = [node for node in tree if not node["ignored"] and node["role"]["value"] in _CONTROLS]
    assert controls
    return [node["role"]["value"] for node in controls if not node.get("name", {}).get("value", "").strip()]


def download_axe(directory: Path) -> str | None:
    """Return the source of axe-core, or None if npm cannot get it."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    packed = subprocess.run([npm, "pack", AXE], cwd=directory, capture_output=True, timeout=60, check=False)
    archives = list(directory.glob("axe-core-*.tgz"))
    if packed.returncode or not archives:
        return None
    with tarfile.open(archives[0]) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


def unreached_controls(page: Any, selector: str) -> list[str]:
    """Return the controls of an element of Playwright's page that the Tab key does not reach from the first one."""
    count = page.evaluate(_FIND_CONTROLS, selector)
    for _ in range(count):
        page.keyboard.press("Tab")
        page.evaluate("window.focused.add(document.activeElement)")
    unreached: list[str] = page.evaluate(
        "controls.filter((e) => e.isConnected && !focused.has(e)).map((e) => e.outerHTML.slice(0, 200))"
    )
    return unreached


def check_accessibility(page: NotebookPage, axe: str, selector: str) -> None:
    """Check an element: Tab reaches its controls; in both themes they have names, and axe-core has nothing serious."""
    unreached = unreached_controls(page.browser_page, selector)
    assert not unreached, unreached
    for theme in THEMES:
        page.theme(theme)
        assert unnamed_controls(page, selector) == []
        violations = serious_violations(page.browser_page, axe, selector)
        assert not violations, f"{theme}: {violations}"
    page.theme("light")


def serious_violations(page: Any, axe: str, selector: str) -> list[dict[str, Any]]:
    """Return the rules of axe-core that an element of Playwright's page violates with serious or critical impact."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe)
    script = """async (selector) => (await axe.run(document.querySelector(selector))).violations
        .filter(({ impact }) => impact === "serious" || impact === "critical")
        .map(({ id, nodes }) => ({ id, nodes: nodes.map(({ html }) => html.slice(0, 200)) }))"""
    violations: list[dict[str, Any]] = page.evaluate(script, selector)
    return violations
