"""The page on speed says what was recorded."""

import json
import re

import pytest
import speed
from bs4 import BeautifulSoup
from built import ROOT, need_site

RECORD = {
    "command": "python run.py",
    "commit": "0123456789abcdef",
    "date": "2026-11-30",
    "machine": {"cpu": "A Processor", "cores": 2, "threads": 1, "python": "3.11.7"},
    "runs": {
        "greedy, small": {
            "cpu_seconds": 90.0,
            "result": {
                "seconds": {"ours": 1.0, "other": 1.5},
                "tokens_per_second": {"ours": 3000, "other": 2000},
                "ratios": {"other": {"ratio": 1.5, "lowest": 0.9, "highest": 2.0}},
                "same_as_ours": {"other": 0.996},
                "alone": {"ours": {"peak_mib": 1200.4, "seconds": 1.0}, "other": {"peak_mib": 2400.0, "seconds": 2.0}},
            },
        },
        "prepare": {"cpu_seconds": 30.0, "result": {"alone": {"ours": {"peak_mib": 80.0, "seconds": 3.0}}}},
        "where, greedy": {
            "cpu_seconds": 0.0,
            "result": {"calls": 1234, "shares": {"products": 0.6, "other": 0.3, "attention": 0.1}},
        },
    },
}


def test_a_table():
    assert speed.fill("<!-- benchmarks: greedy -->", RECORD).splitlines() == [
        "| Work | Who | Tokens per second | Ours is faster by | Memory, MiB | Same output |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| greedy, small | ours | 3,000 |  | 1,200 |  |",
        "|  | other | 2,000 | 1.50 (0.90 to 2.00) | 2,400 | 99.6% |",
    ]


def test_columns_that_nobody_fills_are_left_out():
    assert speed.fill("<!-- benchmarks: prepare -->", RECORD).splitlines() == [
        "| Work | Who | Time | Memory, MiB |",
        "| --- | --- | ---: | ---: |",
        "| prepare | ours | 3.00 s | 80 |",
    ]


def test_an_option_keeps_its_two_hyphens():
    run = {"cpu_seconds": 1.0, "result": {"seconds": {"ours": 1.0, "run --help": 2.0}}}
    table = speed.fill("<!-- benchmarks: startup -->", RECORD | {"runs": {"startup": run}})
    assert table.splitlines()[-1] == "|  | `run --help` | 2.00 s |"


def test_numbers_in_sentences():
    assert (
        speed.fill("((greedy, small; other)) times, ((memory: greedy, small; other)).", RECORD) == "1.50 times, 0.50."
    )


def test_where_the_time_goes():
    assert speed.fill("<!-- shares -->", RECORD).splitlines() == [
        "| Work | products | attention | other | calls |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| greedy | 60% | 10% | 30% | 1,234 |",
    ]


def test_what_made_it():
    assert speed.fill("<!-- machine -->", RECORD) == (
        "Recorded on 2026-11-30 with `python run.py` at commit `0123456789`, on an A Processor (cores 2, python "
        "3.11.7), two threads, in 2 minutes of processor time."
    )


@pytest.mark.parametrize("text", ["<!-- benchmarks: none -->", "((greedy, small; nobody))", "((none; other))"])
def test_what_is_not_recorded_is_an_error(text):
    with pytest.raises(KeyError):
        speed.fill(text, RECORD)


def test_every_recorded_benchmark_is_on_the_page():
    """And every benchmark that there is has been recorded."""
    record = json.loads((ROOT / speed.RESULTS).read_text(encoding="utf-8"))
    source = (ROOT / f"{speed.PAGE}.md").read_text(encoding="utf-8")
    beginnings = [*re.findall("<!-- benchmarks: (.+?) -->", source), "where, "]
    assert not [name for name in record["runs"] if not name.startswith(tuple(beginnings))]
    known = (ROOT / "tests/benchmarks/run.py").read_text(encoding="utf-8")
    names = re.findall(r'^    "([^"]+)": \(', known, re.MULTILINE)
    assert len(names) > 20 and set(record["runs"]) == set(names)


@pytest.mark.book
def test_the_page_has_the_numbers_of_the_record():
    page = BeautifulSoup((need_site() / f"{speed.PAGE}.html").read_text(encoding="utf-8"), "html.parser").get_text()
    assert "((" not in page and "<!--" not in page
    record = json.loads((ROOT / speed.RESULTS).read_text(encoding="utf-8"))
    for name, run in record["runs"].items():
        for speed_of in run["result"].get("tokens_per_second", {}).values():
            assert f"{speed_of:,}" in page, name
    assert record["date"] in page and record["commit"][:10] in page
