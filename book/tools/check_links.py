"""Ask for every external address that the built book links to: `make links`. It is no test, since it needs the network.

The addresses of one host are asked for one after the other, with a pause. One line for each that does not answer as it
should. A refusal (401, 403, 429) says nothing about the address: it is shown and not counted.
"""

import argparse
import http.client
import re
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

SITE = Path(__file__).resolve().parents[2] / "_build/html"
LINK = re.compile(r'<a\b[^>]*?\shref="(https?://[^"]+)"')
REFUSED = (401, 403, 429)
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; link check of a book)"}


def external_links(site: Path) -> dict[str, str]:
    """Each external address in the text or the footer of a page, without fragment, with a page that links to it."""
    found = {}
    for path in sorted(site.rglob("*.html"), reverse=True):
        text = path.read_text(encoding="utf-8")
        start = text.find("<article")
        for link in LINK.findall(text, start) if start >= 0 else []:
            found[unescape(link).partition("#")[0]] = path.relative_to(site).as_posix()
    return found


def status(address: str, timeout: float) -> int | str:
    """The status that the address answers with in the end, or what went wrong."""
    answer: int | str = 0
    for method in ("HEAD", "GET"):  # some servers know only the second
        try:
            request = urllib.request.Request(address, headers=HEADERS, method=method)
            with urllib.request.urlopen(request, timeout=timeout) as got:
                return int(got.status)
        except urllib.error.HTTPError as error:
            answer = error.code
            error.close()
        except (OSError, http.client.HTTPException) as error:
            answer = str(getattr(error, "reason", error)) or type(error).__name__
    return answer


def check(addresses: list[str], timeout: float, pause: float) -> dict[str, int | str]:
    """The statuses of all addresses, a few hosts at once."""
    hosts = [list(group) for _, group in groupby(sorted(addresses, key=host), key=host)]

    def one_host(group: list[str]) -> dict[str, int | str]:
        found = {}
        for number, address in enumerate(group):
            time.sleep(pause if number else 0)
            found[address] = status(address, timeout)
        return found

    with ThreadPoolExecutor(4) as pool:
        return {address: answer for found in pool.map(one_host, hosts) for address, answer in found.items()}


def host(address: str) -> str:
    """The server that is asked."""
    return urlsplit(address).netloc


def main() -> None:
    """Check, report, and exit with 1 if an address is broken."""
    parser = argparse.ArgumentParser(description="Ask for every external address that the built book links to.")
    parser.add_argument("--site", type=Path, default=SITE)
    parser.add_argument("--timeout", type=float, default=20, help="seconds (default: 20)")
    parser.add_argument("--pause", type=float, default=2, help="seconds between two questions to a host (default: 2)")
    options = parser.parse_args()
    links = external_links(options.site)
    if not links:
        sys.exit("There is no built book in _build/html: run make book first.")
    answers = check(list(links), options.timeout, options.pause)
    wrong = {address: answer for address, answer in answers.items() if answer != 200}
    for address, answer in sorted(wrong.items()):
        print(f"{'refused' if answer in REFUSED else 'BROKEN'} {answer}: {address} ({links[address]})")
    broken = sum(answer not in REFUSED for answer in wrong.values())
    print(f"{len(links)} addresses, {broken} broken, {len(wrong) - broken} refused")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
