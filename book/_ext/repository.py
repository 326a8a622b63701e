"""Find the repository's address, once; without one, leave out every button that would need it.

In this order: the setting ``book_repository``, the environment's ``GITHUB_REPOSITORY``, the git remote ``origin``.
"""

import os
import re
import subprocess
from pathlib import Path


def slug(address: str) -> str:
    """``OWNER/NAME`` of a GitHub address in any of its forms, without credentials, or an empty string."""
    name = r"([\w.-]+/[\w.-]+?)(?:\.git)?/?"
    found = re.fullmatch(name, address) or re.fullmatch(rf"(?:.*[@/])?github\.com[:/]{name}", address)
    return found[1] if found else ""


def find(setting: str, root: Path) -> str:
    """The repository as ``OWNER/NAME``, or an empty string if nobody tells."""
    for told in (setting, os.environ.get("GITHUB_REPOSITORY", "")):
        if slug(told):
            return slug(told)
    remote = subprocess.run(
        ["git", "config", "--get", "remote.origin.url"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    return slug(remote) if "github.com" in remote else ""


def configure(app, config):
    config.book_repository = find(config.book_repository, Path(app.srcdir))
    known = bool(config.book_repository)
    config.html_theme_options.update(
        repository_url=f"https://github.com/{config.book_repository}" if known else "",
        repository_branch=config.book_branch,
        use_repository_button=known,
        use_edit_page_button=known,
        use_issues_button=known,
    )


def setup(app):
    app.add_config_value("book_repository", "", "html")
    app.add_config_value("book_branch", "main", "html")
    app.connect("config-inited", configure, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
