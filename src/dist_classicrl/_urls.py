"""What is shown of a URL."""

from __future__ import annotations

import re

# From the first colon to the last @ of what comes before the path: a user may be an address of mail.
_PASSWORD = re.compile("(://[^/]*?:)[^/]*@")


def has_password(text: str) -> bool:
    """Tell whether a text is a URL with a password."""
    return _PASSWORD.search(text) is not None


def without_password(text: str) -> str:
    """Return a text with three dots in place of the password of a URL."""
    return _PASSWORD.sub(r"\1...@", text)
