"""What a page of HTML consists of, and how a browser shows it on a phone."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

BROWSER = shutil.which("chromium")


class Tags(HTMLParser):
    """What a page consists of: its tags must close in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def look(page, folder, scheme):
    """Show a page in a frame of 390 pixels, light (1) or dark (0).

    Return its width, that of its window and its ground, as text, and what the browser has logged.
    """
    around = folder / "around.html"
    around.write_text(
        f'<iframe id="f" style="width:390px;height:800px;border:0" src="{page.as_uri()}"></iframe><script>'
        "onload = () => { const d = document.getElementById('f').contentDocument; document.title = "
        "d.documentElement.scrollWidth + ' ' + d.defaultView.innerWidth + ' ' + "
        "d.defaultView.getComputedStyle(d.body).backgroundColor; }</script>"
    )
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--allow-file-access-from-files", "--enable-logging=stderr",
            f"--blink-settings=preferredColorScheme={scheme}", f"--user-data-dir={folder / 'profile'}",
            "--hide-scrollbars", "--dump-dom", around.as_uri(),
        ],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    (title,) = re.findall("<title>(.*?)</title>", done.stdout)
    return title, done.stderr
